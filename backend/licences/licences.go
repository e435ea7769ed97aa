// Package licences holds the licence of everything that is in the program: its own, those of the Go modules that are linked in, of the
// npm packages in the page's bundle, and of the texts that the bundled model was trained on. The texts are one file, written by
// scripts/licences; nothing here knows where they came from.
package licences

import (
	_ "embed"
	"fmt"
	"strings"
)

//go:embed licences.txt
var text string

// Licence is one work and the terms it comes under.
type Licence struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	SPDX    string `json:"spdx"` // identifier, such as MIT or BSD-3-Clause
	Part    Part   `json:"part"`
	Text    string `json:"text"`
}

// Part says where in Colibri a work is.
type Part string

const (
	Own     Part = "Colibri"
	Program Part = "program" // Go modules
	Page    Part = "page"    // npm packages
	Model   Part = "model"   // training texts
)

// All lists the licences: Colibri's own first, then by part and name.
func All() []Licence {
	all, err := parse(text)
	if err != nil {
		panic(err) // the file is part of the program and tested
	}
	return all
}

// separator stands on a line of its own before each work.
var separator = "\n" + strings.Repeat("=", 80) + "\n"

const introduction = "What is in Colibri, and under which licence. Written by: go run ./scripts/licences\n"

// Format is the file for a list; All reads it back.
func Format(all []Licence) string {
	var b strings.Builder
	b.WriteString(introduction)
	for _, l := range all {
		fmt.Fprintf(&b, "%sname: %s\nversion: %s\nlicence: %s\npart: %s\n\n%s\n", separator, l.Name, l.Version, l.SPDX, l.Part, l.Text)
	}
	return b.String()
}

func parse(text string) ([]Licence, error) {
	entries := strings.Split(text, separator)
	var all []Licence
	for _, entry := range entries[1:] {
		head, body, _ := strings.Cut(entry, "\n\n")
		l := Licence{Text: strings.TrimSuffix(body, "\n")}
		fields := map[string]*string{"name": &l.Name, "version": &l.Version, "licence": &l.SPDX, "part": (*string)(&l.Part)}
		for line := range strings.Lines(head) {
			key, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
			field := fields[key]
			if field == nil {
				return nil, fmt.Errorf("licences.txt: %q is no field", line)
			}
			*field = strings.TrimSpace(value)
		}
		all = append(all, l)
	}
	return all, nil
}
