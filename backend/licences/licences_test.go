package licences

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func TestTheFileReadsBackAsItWasWritten(t *testing.T) {
	all, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if Format(all) != text {
		t.Error("writing what was read gives another file")
	}
	if _, err := parse(introduction + separator + "title: x\n\nwords\n"); err == nil {
		t.Error("an unknown field is taken")
	}
}

func TestEveryLicenceIsWhole(t *testing.T) {
	parts := map[Part]int{}
	for i, l := range All() {
		parts[l.Part]++
		if l.Name == "" || l.Version == "" || l.SPDX == "" || len(l.Text) < 40 {
			t.Errorf("licence %d: %s %s %s, %d bytes of text", i, l.Name, l.Version, l.SPDX, len(l.Text))
		}
		if l.Part == Own && (i != 0 || l.Name != "Colibri" || !strings.Contains(l.Text, "MIT License")) {
			t.Errorf("licence %d is %+v", i, l)
		}
	}
	if parts[Own] != 1 || parts[Model] != 1 || parts[Program] < 10 || parts[Page] < 10 {
		t.Errorf("licences by part: %v", parts)
	}
	// The page gets them in one call; Wails copies a result several times on the main thread.
	if len(text) > 256<<10 {
		t.Errorf("%d bytes are too much for one call", len(text))
	}
}

// The npm side needs a build of the page; `go run ./scripts/licences --check`, a part of the suite, has it.
func TestEveryLinkedModuleIsListed(t *testing.T) {
	listed := map[string]bool{}
	for _, l := range All() {
		listed[l.Name+" "+l.Version] = true
	}
	for _, target := range []struct{ system, tags string }{{"darwin", "desktop,production"}, {"linux", "desktop,production,webkit2_41"}} {
		list := exec.Command("go", "list", "-deps", "-tags", target.tags, "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", ".", "./cmd/colibri")
		list.Dir = "../.."
		list.Env = append(os.Environ(), "GOOS="+target.system, "CGO_ENABLED=1", "CC=cc")
		list.Stderr = os.Stderr
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		modules := strings.Fields(strings.ReplaceAll(string(out), " ", "@"))
		if len(modules) < 20 {
			t.Fatalf("only %d modules on %s", len(modules), target.system)
		}
		for _, m := range modules {
			if m = strings.Replace(m, "@", " ", 1); !listed[m] {
				t.Errorf("%s is linked on %s and licences.txt lacks it; run: go run ./scripts/licences", m, target.system)
			}
		}
	}
}
