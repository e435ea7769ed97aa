// Package crosscheck compiles for macOS where there is no Mac: every Go file of the program is type-checked as a Mac would build it, the C
// behind it included, and every C and Objective-C file becomes an object, warnings as errors. The system's headers are the project's own
// declarations; nothing is linked or run, so what only a Mac can show stays for a Mac.
package crosscheck

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
)

// listed is what go list says of a package as a Mac would build it.
type listed struct {
	ImportPath, Dir           string
	GoFiles, CgoFiles         []string
	CFiles, MFiles, CgoCFLAGS []string
	Imports                   []string
	ImportMap                 map[string]string
	Module                    *struct{ Main bool }
	Error                     *struct{ Err string }
}

func (p *listed) ours() bool { return p.Module != nil && p.Module.Main }

// mac is the environment of a Mac's build.
type mac struct {
	t       *testing.T
	clang   string
	include []string
	env     []string
}

const root = "../.."

func newMac(t *testing.T) *mac {
	t.Helper()
	m := &mac{t: t}
	for _, name := range []string{"clang-19", "clang"} {
		if path, err := exec.LookPath(name); err == nil {
			m.clang = path
			break
		}
	}
	if m.clang == "" {
		t.Skip("neither clang-19 nor clang is installed: nothing was checked for macOS, and nothing else here does; a Mac's build would")
	}
	for _, dir := range []string{
		"backend/crosscheck/declarations/system", "backend/crosscheck/declarations/cocoa",
		"backend/metal/declarations/system", "backend/metal/declarations/foundation", "backend/metal/declarations/metal",
	} {
		path, err := filepath.Abs(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		m.include = append(m.include, "-isystem", path)
	}
	// cgo asks the C compiler for types by name, and takes one word.
	script := filepath.Join(t.TempDir(), "cc")
	text := fmt.Sprintf("#!/bin/sh\nexec %q %s \"$@\"\n", m.clang, strings.Join(m.flags(), " "))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	m.env = append(os.Environ(), "GOOS=darwin", "GOARCH=arm64", "CGO_ENABLED=1", "CC="+script, "CGO_CFLAGS=", "GOFLAGS=")
	return m
}

func (m *mac) flags() []string {
	return append([]string{"-target", "arm64-apple-macos13", "-nostdlibinc"}, m.include...)
}

func (m *mac) run(dir, name string, args ...string) ([]byte, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Env = dir, m.env
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%w\n%s%s", err, stderr.Bytes(), out)
	}
	return out, err
}

// list gives the packages of a program, dependencies first.
func (m *mac) list(tags string, packages ...string) []*listed {
	m.t.Helper()
	args := append([]string{"list", "-deps", "-tags", tags, "-json=ImportPath,Dir,GoFiles,CgoFiles,CFiles,MFiles,CgoCFLAGS,Imports,ImportMap,Module,Error"}, packages...)
	out, err := m.run(root, "go", args...)
	if err != nil {
		m.t.Fatal(err)
	}
	var all []*listed
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &listed{}
		err := decoder.Decode(p)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			m.t.Fatal(err)
		}
		all = append(all, p)
	}
}

// checker type-checks packages; files are parsed while others are checked.
type checker struct {
	*mac
	files   *token.FileSet
	done    map[string]*types.Package
	objects map[string]string // by import path: where cgo wrote
}

// cgo translates a package's files that use C; the C compiler judges every name and type in them.
func (c *checker) cgo(p *listed) ([]string, error) {
	dir := c.t.TempDir()
	c.objects[p.ImportPath] = dir
	args := append([]string{"tool", "cgo", "-objdir", dir, "-importpath", p.ImportPath, "--", "-I", p.Dir}, p.CgoCFLAGS...)
	if _, err := c.run(p.Dir, "go", append(args, p.CgoFiles...)...); err != nil {
		return nil, err
	}
	names := []string{filepath.Join(dir, "_cgo_gotypes.go")}
	for _, f := range p.CgoFiles {
		names = append(names, filepath.Join(dir, strings.TrimSuffix(f, ".go")+".cgo1.go"))
	}
	return names, nil
}

func (c *checker) check(p *listed) (problems []error) {
	if p.ImportPath == "unsafe" {
		c.done["unsafe"] = types.Unsafe
		return nil
	}
	var names []string
	for _, f := range p.GoFiles {
		names = append(names, filepath.Join(p.Dir, f))
	}
	if p.ours() && len(p.CgoFiles) > 0 {
		translated, err := c.cgo(p)
		if err != nil {
			return []error{err}
		}
		names = append(names, translated...)
	} else {
		for _, f := range p.CgoFiles {
			names = append(names, filepath.Join(p.Dir, f))
		}
	}
	parsed := make([]*ast.File, len(names))
	failed := make([]error, len(names))
	var work sync.WaitGroup
	for i, name := range names {
		work.Go(func() { parsed[i], failed[i] = parser.ParseFile(c.files, name, nil, parser.SkipObjectResolution) })
	}
	work.Wait()
	if err := errors.Join(failed...); err != nil {
		return []error{err}
	}
	config := types.Config{
		Importer: imports{c, p}, Sizes: types.SizesFor("gc", "arm64"),
		IgnoreFuncBodies: !p.ours(), FakeImportC: !p.ours(),
		Error: func(err error) {
			if p.ours() {
				problems = append(problems, err)
			}
		},
	}
	c.done[p.ImportPath], _ = config.Check(p.ImportPath, c.files, parsed, nil) // errors come through Error
	return problems
}

type imports struct {
	c *checker
	p *listed
}

func (i imports) Import(path string) (*types.Package, error) {
	if mapped, ok := i.p.ImportMap[path]; ok {
		path = mapped
	}
	if p := i.c.done[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not listed", path)
}

// sdks are versions of the system's headers: Metal's host has residency sets from 150000 on, and must do without them before.
var sdks = []string{"130300", "140000", "150000", "260000"}

// compile makes objects of a package's C and Objective-C, the latter with each of the SDKs.
func (c *checker) compile(p *listed) error {
	var failed error
	object := func(file string, more ...string) {
		args := slices.Concat(c.flags(), p.CgoCFLAGS, []string{"-Wall", "-Wextra", "-Wshadow", "-Wunguarded-availability-new", "-Werror",
			"-I", p.Dir, "-I", c.objects[p.ImportPath], "-c", file, "-o", filepath.Join(c.objects[p.ImportPath], file+".o")}, more)
		if _, err := c.run(p.Dir, c.clang, args...); err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s/%s %v: %w", p.ImportPath, file, more, err))
		}
	}
	for _, f := range p.CFiles {
		object(f)
	}
	for _, f := range p.MFiles {
		for _, sdk := range sdks {
			object(f, "-Wpedantic", "-Wconversion", "-Wno-gnu", "-D__MAC_OS_X_VERSION_MAX_ALLOWED="+sdk)
		}
	}
	return failed
}

func TestTheProgramCompilesForMacOS(t *testing.T) {
	c := &checker{mac: newMac(t), files: token.NewFileSet(), done: map[string]*types.Package{}, objects: map[string]string{}}
	var checked []string
	for _, p := range c.list("desktop,production", ".", "./cmd/...") { // the window, and the command line
		if p.Error != nil {
			t.Fatalf("%s: %s", p.ImportPath, p.Error.Err)
		}
		for _, problem := range c.check(p) {
			t.Errorf("%s: %v", p.ImportPath, problem)
		}
		if !p.ours() {
			continue
		}
		if len(p.CgoFiles) > 0 {
			if err := c.compile(p); err != nil {
				t.Error(err)
			}
		}
		checked = slices.Concat(checked, p.GoFiles, p.CgoFiles, p.CFiles, p.MFiles)
	}
	for _, f := range []string{"system_darwin.go", "system_darwin.m", "memory_darwin.go", "awake_darwin.go", "signals_darwin.c", "signals_darwin.go",
		"file_darwin.go", "kernels_neon.c", "metal_device.m", "generate.go"} {
		if !slices.Contains(checked, f) {
			t.Errorf("%s was not checked", f)
		}
	}
}
