package main

import (
	"encoding/json"
	"io/fs"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"colibri/backend/bundled"
)

// These tests hold what the documents tell a reader to type, open and follow against what is there. They live here because most of it is
// command lines of this program.

const root = "../../"

// documents are all Markdown files of the project by path from its root.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(root, path)
		if d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".git" || name == "build/bin" || name == "build/cache" || name == "test-results") {
			return filepath.SkipDir
		}
		if filepath.Ext(path) == ".md" {
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			texts[name] = string(text)
		}
		return nil
	})
	if err != nil || len(texts) < 8 {
		t.Fatalf("%d documents, %v", len(texts), err)
	}
	return texts
}

var (
	fence = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```")
	span  = regexp.MustCompile("`([^`\n]+)`")
	link  = regexp.MustCompile(`\]\(([^)\s]+)\)|(?:src|href)="([^"]+)"`)
)

// shellBlocks are the lines of a document's blocks marked as shell: what a reader copies and runs.
func shellBlocks(text string) (lines []string) {
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if m[1] != "sh" {
			continue
		}
		for line := range strings.Lines(m[2]) {
			line, _, _ = strings.Cut(line, " #")
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

// words splits a command line at spaces outside quotation marks.
func words(line string) (out []string) {
	for _, m := range regexp.MustCompile(`(?:[^\s"]|"[^"]*")+`).FindAllString(line, -1) {
		out = append(out, strings.ReplaceAll(m, `"`, ""))
	}
	return out
}

func makeTargets(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(root + "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z-]*):`).FindAllStringSubmatch(string(text), -1) {
		targets = append(targets, m[1])
	}
	return targets
}

func isThere(path string) bool { _, err := os.Stat(path); return err == nil }

func TestTheCommandsOfTheDocumentsRun(t *testing.T) {
	targets := makeTargets(t)
	for name, text := range documents(t) {
		t.Run(name, func(t *testing.T) {
			here, err := filepath.Abs(root)
			if err != nil {
				t.Fatal(err)
			}
			inANewFolder(t)
			for _, line := range shellBlocks(text) {
				w := words(line)
				for len(w) > 0 && strings.Contains(w[0], "=") { // settings before a command
					w = w[1:]
				}
				switch {
				case w[0] == "make":
					if len(w) > 1 && !slices.Contains(targets, w[1]) {
						t.Errorf("%q: the Makefile has no %s", line, w[1])
					}
				case w[0] == "build/bin/colibri":
					runShort(t, line, w[1:])
				case w[0] == "go" && (w[1] == "test" || w[1] == "run" || w[1] == "build"):
					for _, arg := range w[2:] {
						if path, ok := strings.CutPrefix(arg, "./"); ok && !isThere(filepath.Join(here, strings.TrimSuffix(path, "/..."))) {
							t.Errorf("%q: there is no %s", line, arg)
						}
					}
				case strings.HasPrefix(w[0], "scripts/") || strings.HasPrefix(w[0], "build/darwin/"):
					if info, err := os.Stat(filepath.Join(here, w[0])); err != nil || info.Mode()&0o111 == 0 {
						t.Errorf("%q: %s cannot be run", line, w[0])
					}
				case w[0] == "cd" && slices.Contains(w, "npm"):
					if !isThere(filepath.Join(here, w[1], "package.json")) || !hasScript(t, filepath.Join(here, w[1]), w[len(w)-1]) {
						t.Errorf("%q: %s has no such script", line, w[1])
					}
				case w[0] == "git": // another program's
				default:
					t.Errorf("%q is a command that this test does not know: teach it how to check it", line)
				}
			}
		})
	}
}

func hasScript(t *testing.T, folder, name string) bool {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder, "package.json"))
	if err != nil {
		t.Fatal(err)
	}
	var p struct{ Scripts map[string]string }
	if err := json.Unmarshal(text, &p); err != nil {
		t.Fatal(err)
	}
	return p.Scripts[name] != ""
}

// inANewFolder makes what the documents' command lines name by example.
func inANewFolder(t *testing.T) {
	t.Helper()
	model, err := bundled.Path(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("path/to", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(model, "path/to/checkpoint"); err != nil {
		t.Fatal(err)
	}
}

// runShort runs a command line of this program, answers and measurements cut short.
func runShort(t *testing.T, line string, args []string) {
	t.Helper()
	switch args[0] {
	case "run":
		args = append(args, "--max-tokens", "8")
	case "bench":
		args = append(args, "--parts", "model", "--prompt", "16", "--decode", "4", "--rounds", "1")
	}
	if code, out, notes := colibri(t, args...); code != 0 || out == "" {
		t.Errorf("%q: exit %d, %s", line, code, notes)
	}
}

func TestTheCommandsNamedInTheTextExist(t *testing.T) {
	targets := makeTargets(t)
	for name, text := range documents(t) {
		spans := []string{}
		for _, m := range span.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			spans = append(spans, m[1])
		}
		for _, m := range fence.FindAllStringSubmatch(text, -1) {
			spans = append(spans, strings.Split(strings.TrimSpace(m[2]), "\n")...)
		}
		for _, s := range spans {
			w := words(s)
			switch {
			case len(w) > 1 && w[0] == "make" && regexp.MustCompile(`^[a-z][a-z-]*$`).MatchString(w[1]):
				if !slices.Contains(targets, w[1]) {
					t.Errorf("%s: %q: the Makefile has no %s", name, s, w[1])
				}
			case len(w) > 1 && (w[0] == "colibri" || w[0] == "build/bin/colibri"):
				checkVerb(t, name, s, w[1:])
			}
		}
	}
}

// checkVerb finds a command's name and options in what the program says of itself.
func checkVerb(t *testing.T, document, text string, args []string) {
	t.Helper()
	if !slices.ContainsFunc(commands, func(c command) bool { return c.name == args[0] }) {
		t.Errorf("%s: %q: there is no command %s", document, text, args[0])
		return
	}
	_, _, help := colibri(t, args[0], "--help")
	for _, arg := range args[1:] {
		option, isOption := strings.CutPrefix(strings.TrimLeft(arg, "[("), "--")
		option = strings.TrimRight(option, "])|.,;")
		if isOption && !regexp.MustCompile(`(?m)^  -`+regexp.QuoteMeta(option)+`\b`).MatchString(help) {
			t.Errorf("%s: %q: colibri %s has no option --%s", document, text, args[0], option)
		}
	}
}

// Files are named from the root, from backend/, from frontend/src or as in the document's own folder.
func TestTheFilesNamedInTheTextExist(t *testing.T) {
	file := regexp.MustCompile(`^(?:[A-Za-z0-9_.-]+/)+[A-Za-z0-9_.-]*$|^[a-z_]+\.(?:go|m|h|c|metal|sh|ts)$`)
	made := regexp.MustCompile(`^(?:build/(?:bin|cache|simulator)|path/to|test-results|Library|Contents)\b|^[^/]*\.[a-z]{2,3}/|[A-Z]{3,}|\.\.\.`)
	for name, text := range documents(t) {
		for _, m := range span.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			path := strings.TrimSuffix(m[1], "/")
			if !file.MatchString(m[1]) || made.MatchString(path) || !strings.ContainsAny(path, "./") {
				continue
			}
			there := false
			for _, base := range []string{"", "backend", "frontend/src", "backend/metal", "backend/metal/shaders", "backend/residency", filepath.Dir(name)} {
				there = there || isThere(filepath.Join(root, base, path))
			}
			if !there {
				t.Errorf("%s names `%s`, which is not there", name, m[1])
			}
		}
	}
}

func TestTheLinksOfTheDocumentsLead(t *testing.T) {
	texts := documents(t)
	for name, text := range texts {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target := m[1] + m[2]
			if strings.HasPrefix(target, "http") {
				if u, err := url.Parse(target); err != nil || u.Scheme != "https" || !strings.Contains(u.Host, ".") {
					t.Errorf("%s: %s is no web address", name, target)
				}
				continue
			}
			path, anchor, _ := strings.Cut(target, "#")
			file := name
			if path != "" {
				file = filepath.Join(filepath.Dir(name), path)
			}
			if !isThere(filepath.Join(root, file)) {
				t.Errorf("%s: %s leads nowhere", name, target)
				continue
			}
			if !tracked(file) {
				t.Errorf("%s: %s is here, but not in the repository", name, target)
			}
			if anchor != "" && !slices.Contains(anchors(texts[file]), anchor) {
				t.Errorf("%s: %s has no heading for #%s", name, file, anchor)
			}
		}
	}
}

// tracked tells whether the repository has a file; without git (a source archive) every file counts.
func tracked(path string) bool {
	if !isThere(root + ".git") {
		return true
	}
	list := exec.Command("git", "ls-files", "--error-unmatch", path)
	list.Dir = root
	return list.Run() == nil
}

// anchors are the names that a reader's browser gives to the headings of a document.
func anchors(text string) (names []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.+)$`).FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		name := regexp.MustCompile(`[^\p{L}\p{N} _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		names = append(names, strings.ReplaceAll(name, " ", "-"))
	}
	return names
}

// The README repeats a few figures of docs/performance.md, which has the method: a figure measured anew changes in both.
func TestTheFiguresOfTheReadmeAreMeasuredOnes(t *testing.T) {
	texts := documents(t)
	_, section, _ := strings.Cut(texts["README.md"], "What we measured")
	section, _, _ = strings.Cut(section, "We have not measured a Mac")
	rows := regexp.MustCompile(`(?m)^\| .+ \| (.+) \|$`).FindAllStringSubmatch(section, -1)
	if len(rows) < 3 {
		t.Fatalf("%d rows of figures", len(rows))
	}
	measured := strings.ReplaceAll(texts["docs/performance.md"], "\n", " ")
	for _, row := range rows[1:] {
		for figure := range strings.SplitSeq(row[1], "; ") {
			if !strings.Contains(measured, figure) {
				t.Errorf("the README says %q, docs/performance.md does not", figure)
			}
		}
	}
}

// docs/dependencies.md gives a reason for everything that was chosen; what that brings along is not listed.
func TestEveryDependencyHasAReason(t *testing.T) {
	page := documents(t)["docs/dependencies.md"]
	mod, err := os.ReadFile(root + "go.mod")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for line := range strings.Lines(string(mod)) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "\t") && !strings.Contains(line, "// indirect") {
			names = append(names, fields[0])
		}
	}
	for _, folder := range []string{"frontend", "e2e"} {
		text, err := os.ReadFile(filepath.Join(root, folder, "package.json"))
		if err != nil {
			t.Fatal(err)
		}
		var p struct{ Dependencies, DevDependencies map[string]string }
		if err := json.Unmarshal(text, &p); err != nil {
			t.Fatal(err)
		}
		names = slices.AppendSeq(names, maps.Keys(p.Dependencies))
		names = slices.AppendSeq(names, maps.Keys(p.DevDependencies))
	}
	if len(names) < 25 {
		t.Fatalf("only %d dependencies", len(names))
	}
	for _, name := range names {
		if !regexp.MustCompile(`(^|[\s|,:])` + regexp.QuoteMeta(name) + `([\s|,]|$)`).MatchString(page) {
			t.Errorf("docs/dependencies.md gives no reason for %s", name)
		}
	}
}
