// Command licences collects the licence texts of everything that is in Colibri into backend/licences/licences.txt, which the app shows.
//
//	go run ./scripts/licences          writes the file
//	go run ./scripts/licences --check  fails where the file lacks something, or holds something that is gone
//
// It needs the Go module cache and frontend/node_modules; both are there after `make window`.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"colibri/backend/licences"
	"colibri/backend/version"
)

const file = "backend/licences/licences.txt"

func main() {
	check := flag.Bool("check", false, "compare instead of writing")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, "licences:", err)
		os.Exit(1)
	}
}

func run(check bool) error {
	all, err := collect()
	if err != nil {
		return err
	}
	text := licences.Format(all)
	if !check {
		return os.WriteFile(file, []byte(text), 0o644)
	}
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if string(have) == text {
		return nil
	}
	for _, l := range all {
		if !slices.Contains(licences.All(), l) {
			return fmt.Errorf("%s lacks %s %s; run: go run ./scripts/licences", file, l.Name, l.Version)
		}
	}
	return fmt.Errorf("%s holds more than is in the program; run: go run ./scripts/licences", file)
}

func collect() ([]licences.Licence, error) {
	own, model, err := ownLicence()
	if err != nil {
		return nil, err
	}
	all := []licences.Licence{own}
	for _, part := range []func() ([]licences.Licence, error){goModules, npmPackages} {
		found, err := part()
		if err != nil {
			return nil, err
		}
		all = append(all, found...)
	}
	return append(all, model), nil
}

// ownLicence splits LICENSE at its ruler: the program's terms, and those of the bundled model's training texts.
func ownLicence() (own, model licences.Licence, err error) {
	content, err := os.ReadFile("LICENSE")
	if err != nil {
		return own, model, err
	}
	ruler := regexp.MustCompile(`\n-{70,}\n`)
	parts := ruler.Split(string(content), -1)
	if len(parts) != 2 {
		return own, model, fmt.Errorf("LICENSE has %d parts; the licence and the bundled model's sources are expected", len(parts))
	}
	own = licences.Licence{Name: "Colibri", Version: version.Number, SPDX: "MIT", Part: licences.Own, Text: strings.TrimSpace(parts[0])}
	model = licences.Licence{Name: "The bundled model", Version: version.Number, SPDX: "MIT", Part: licences.Model, Text: strings.TrimSpace(parts[1])}
	return own, model, nil
}

// targets are the programs that are given away: what is linked differs between systems.
var targets = []struct{ system, tags string }{
	{"darwin", "desktop,production"},
	{"linux", "desktop,production,webkit2_41"},
}

func goModules() ([]licences.Licence, error) {
	found := map[string]licences.Licence{}
	for _, target := range targets {
		list := exec.Command("go", "list", "-deps", "-tags", target.tags,
			"-f", "{{with .Module}}{{if not .Main}}{{.Path}}\t{{.Version}}\t{{.Dir}}{{end}}{{end}}", ".", "./cmd/colibri")
		list.Env = append(os.Environ(), "GOOS="+target.system, "GOARCH=arm64", "CGO_ENABLED=1", "CC=cc")
		list.Stderr = os.Stderr
		out, err := list.Output()
		if err != nil {
			return nil, fmt.Errorf("go list for %s: %w", target.system, err)
		}
		for line := range strings.Lines(string(out)) {
			fields := strings.Split(strings.TrimSpace(line), "\t")
			if len(fields) != 3 {
				continue
			}
			if _, known := found[fields[0]]; known {
				continue
			}
			l := licences.Licence{Name: fields[0], Version: fields[1], Part: licences.Program}
			if err := fill(&l, fields[2]); err != nil {
				return nil, err
			}
			found[l.Name] = l
		}
	}
	toolchain, err := goLicence()
	if err != nil {
		return nil, err
	}
	modules := []licences.Licence{toolchain}
	for _, l := range found {
		modules = append(modules, l)
	}
	slices.SortFunc(modules, func(a, b licences.Licence) int { return strings.Compare(a.Name, b.Name) })
	return modules, nil
}

// goLicence is that of Go's own library and runtime, which every Go program contains. Its version is the one go.mod asks for: the tool chain at
// hand may be newer, with the same text.
func goLicence() (licences.Licence, error) {
	l := licences.Licence{Name: "Go standard library and runtime", Part: licences.Program}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		return l, err
	}
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		return l, err
	}
	if m := regexp.MustCompile(`(?m)^go ([0-9.]+)$`).FindSubmatch(mod); m != nil {
		l.Version = string(m[1])
	}
	return l, fill(&l, strings.TrimSpace(string(root)))
}

func npmPackages() ([]licences.Licence, error) {
	node := exec.Command("node", "scripts/licences/bundle.mjs")
	node.Stderr = os.Stderr
	out, err := node.Output()
	if err != nil {
		return nil, fmt.Errorf("the page's packages: %w (make frontend installs them)", err)
	}
	var packages []struct{ Name, Version, Licence, Folder string }
	if err := json.Unmarshal(out, &packages); err != nil {
		return nil, err
	}
	var all []licences.Licence
	for _, p := range packages {
		l := licences.Licence{Name: p.Name, Version: p.Version, SPDX: strings.Trim(p.Licence, "()"), Part: licences.Page}
		if err := fill(&l, p.Folder); err != nil {
			return nil, err
		}
		all = append(all, l)
	}
	return all, nil
}

var licenceFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents|copyright)|-licen[cs]e`)

// fill reads the licence files of a folder.
func fill(l *licences.Licence, folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	var texts []string
	for _, e := range entries {
		if e.IsDir() || !licenceFile.MatchString(e.Name()) || filepath.Ext(e.Name()) == ".go" {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, e.Name()))
		if err != nil {
			return err
		}
		text := strings.ReplaceAll(string(content), "\r\n", "\n")
		// Of Vite only a helper of its own is in the page, nothing of what its tool brings along.
		text, _, _ = strings.Cut(text, "\n# Licenses of bundled dependencies")
		texts = append(texts, strings.TrimSpace(text))
	}
	if len(texts) == 0 {
		named, err := readmeLicence(folder)
		if err != nil {
			return fmt.Errorf("%s (%s) has no licence file, and %w; find out its terms before it ships", l.Name, folder, err)
		}
		l.SPDX, l.Text = named, "It has no licence file. Its README says: License: "+named
		return nil
	}
	l.Text = strings.Join(texts, "\n\n")
	if l.SPDX == "" {
		l.SPDX, err = identify(l.Text)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", l.Name, err)
	}
	return nil
}

// readmeLicence is the licence that a README names in one word under a heading of its own: some small modules have nothing else.
func readmeLicence(folder string) (string, error) {
	content, err := os.ReadFile(filepath.Join(folder, "README.md"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^#+ Licen[cs]e\s+(MIT|ISC|Apache-2\.0|BSD-[23]-Clause)\s*$`).FindSubmatch(content)
	if m == nil {
		return "", errors.New("its README names none")
	}
	return string(m[1]), nil
}

// identify names the licences whose words stand in a text. Unknown ones, and those that ask for more than a notice, are for a person to judge.
func identify(text string) (string, error) {
	text = strings.Join(strings.Fields(text), " ")
	var found []string
	for _, known := range []struct{ spdx, words string }{
		{"Apache-2.0", "Apache License Version 2.0"},
		{"BSD-3-Clause", "Redistribution and use in source and binary forms"},
		{"MIT", "Permission is hereby granted, free of charge, to any person obtaining a copy"},
		{"ISC", "Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee"},
		{"MPL-2.0", "Mozilla Public License Version 2.0"},
		{"blessing", "The author disclaims copyright to this source code"},
	} {
		if strings.Contains(text, known.words) {
			spdx := known.spdx
			if spdx == "BSD-3-Clause" && !strings.Contains(text, "ndorse or promote products") {
				spdx = "BSD-2-Clause"
			}
			found = append(found, spdx)
		}
	}
	if strings.Contains(text, "GNU GENERAL PUBLIC") || strings.Contains(text, "GNU LESSER GENERAL") {
		return "", errors.New("its terms mention the GPL; a person must decide whether it can be linked")
	}
	if len(found) == 0 {
		return "", errors.New("its licence is not one this program knows; add it to identify")
	}
	return strings.Join(found, " AND "), nil
}
