package crosscheck

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// What docs/window.md says about the weaknesses of Wails on macOS, as far as it shows in the sources of the window: what must never be called,
// what must be set. It reads every file, whatever system it is for.

// windowSources are the parsed files of package main.
func windowSources(t *testing.T) map[string]*ast.File {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, "*.go"))
	if err != nil || len(paths) < 5 {
		t.Fatalf("%v: %v", paths, err)
	}
	files := map[string]*ast.File{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.Base(path)] = file
	}
	return files
}

func TestTheWindowCallsNothingThatWailsGetsWrong(t *testing.T) {
	forbidden := map[string]string{
		"runtime.EventsOff":      "it takes away Go's own listeners",
		"runtime.EventsOffAll":   "it never gives its lock back",
		"runtime.WindowHide":     "the Dock cannot bring the window back",
		"runtime.WindowExecJS":   "its text is cut at a zero byte",
		"runtime.OnFileDrop":     "it panics on an event with too few values",
		"runtime.OnFileDropOff":  "see OnFileDrop",
		"menu.WindowMenu":        "its Full Screen calls a method that windows lack",
		"menu.AppMenu":           "it has no place for Settings",
		"options.SingleInstance": "any error counts as a second start",
	}
	fields := map[string]string{
		"OnDomReady":         "it blocks the message loop at every load",
		"SingleInstanceLock": "any error counts as a second start",
		"Filters":            "filters of file dialogs crash or grey out packages",
		"StartHidden":        "the Dock cannot bring the window back",
	}
	calledBy := map[string][]string{}
	for name, file := range windowSources(t) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.SelectorExpr:
				if why, bad := forbidden[source(n)]; bad {
					t.Errorf("%s uses %s: %s", name, source(n), why)
				}
			case *ast.KeyValueExpr:
				if why, bad := fields[source(n.Key)]; bad {
					t.Errorf("%s sets %s: %s", name, n.Key, why)
				}
			case *ast.FuncDecl:
				ast.Inspect(n, func(in ast.Node) bool {
					if call, ok := in.(*ast.CallExpr); ok {
						called := source(call.Fun)
						calledBy[called] = append(calledBy[called], n.Name.Name)
					}
					return true
				})
			}
			return true
		})
	}
	// Each has one place, which does what the table says around it.
	for called, by := range map[string][]string{
		"runtime.EventsEmit":     {"send"},
		"runtime.EventsOn":       {"started"},
		"runtime.BrowserOpenURL": {"OpenLink"},
	} {
		if !slices.Equal(calledBy[called], by) {
			t.Errorf("%s is called by %v, not by %v alone", called, calledBy[called], by)
		}
	}
}

func TestTheWindowSetsWhatAMacNeeds(t *testing.T) {
	set, files := map[string]string{}, windowSources(t)
	for _, name := range []string{"main.go", "window.go"} {
		ast.Inspect(files[name], func(n ast.Node) bool {
			if made, ok := n.(*ast.CompositeLit); ok {
				for _, e := range made.Elts {
					if kv, ok := e.(*ast.KeyValueExpr); ok {
						set[source(made.Type)+"."+source(kv.Key)] = source(kv.Value)
					}
				}
			}
			if call, ok := n.(*ast.CallExpr); ok {
				set[source(call.Fun)] = "called"
			}
			return true
		})
	}
	for what, want := range map[string]string{
		"options.App.Mac":                        "mac.Options", // without it the zoom button is off
		"options.App.HideWindowOnClose":          "runtime.GOOS==darwin",
		"mac.Options.WebviewIsTransparent":       "true", // else a white ground covers the page
		"mac.Options.WindowIsTranslucent":        "true",
		"options.DragAndDrop.DisableWebViewDrop": "runtime.GOOS==darwin", // else WebKit goes to what is dropped
		"options.DragAndDrop.EnableFileDrop":     "true",                 // without it the other does nothing
		"menu.EditMenu":                          "called",               // else Cmd-C, V, X, A and Z do not reach the page
	} {
		if set[what] != want {
			t.Errorf("%s is %q, not %q", what, set[what], want)
		}
	}
}

// A dialog of a hidden window waits for ever, and every later one behind it.
func TestTheWindowIsShownBeforeADialog(t *testing.T) {
	dialogs := 0
	for _, d := range windowSources(t)["dialogs.go"].Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Body == nil {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && strings.HasSuffix(source(call.Fun), "Dialog") {
				dialogs++
				first, ok := f.Body.List[0].(*ast.ExprStmt)
				if !ok || source(first.X) != "runtime.Show()" {
					t.Errorf("%s does not show the window first", f.Name)
				}
			}
			return true
		})
	}
	if dialogs != 3 {
		t.Errorf("%d dialogs were found", dialogs)
	}
}

// source is an expression in few words: enough to compare it.
func source(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.UnaryExpr:
		return source(e.X)
	case *ast.CallExpr:
		return source(e.Fun) + "()"
	case *ast.CompositeLit:
		return source(e.Type)
	case *ast.BinaryExpr:
		return source(e.X) + e.Op.String() + source(e.Y)
	case *ast.SelectorExpr:
		return source(e.X) + "." + e.Sel.Name
	case *ast.BasicLit:
		return strings.Trim(e.Value, `"`)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// Events sent inside a callback of AppKit would crash when its pool drains: what C calls only starts goroutines.
func TestCallbacksFromTheSystemOnlyStartGoroutines(t *testing.T) {
	callbacks := 0
	for name, file := range windowSources(t) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil || !slices.ContainsFunc(f.Doc.List, func(c *ast.Comment) bool { return strings.HasPrefix(c.Text, "//export ") }) {
				continue
			}
			callbacks++
			ast.Inspect(f.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					return false
				case *ast.CallExpr:
					if called := source(n.Fun); called != "hooked.Load" && called != "C.GoString" {
						t.Errorf("%s: %s calls %s before it returns", name, f.Name, called)
					}
				}
				return true
			})
		}
	}
	if callbacks < 3 {
		t.Errorf("only %d callbacks were found", callbacks)
	}
}

// The page has Wails' own events in one place, and takes no listener away: that takes Go's away too.
func TestThePageTakesNoListenerAway(t *testing.T) {
	bad := regexp.MustCompile(`\bEvents(Off|OffAll|OnMultiple|Once)\b|\bOnFileDrop\b|\bLogFatal\b|\bBrowserOpenURL\b|window\.open\b|\beval\(`)
	err := filepath.WalkDir(filepath.Join(root, "frontend", "src"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, ".test.ts") {
			return err
		}
		text, err := os.ReadFile(path)
		if found := bad.Find(text); found != nil {
			t.Errorf("%s has %s", path, found)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
