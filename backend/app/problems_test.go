package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"colibri/backend/chat/jinja"
	"colibri/backend/chat/store"
	"colibri/backend/engine"
	"colibri/backend/residency"
)

// below are the packages whose errors reach the window.
var below = []string{"bundled", "chat", "chat/jinja", "chat/store", "compute", "container", "cpu", "engine", "metal", "residency", "tokenizer"}

// errorsIn is what the sources in those folders say: exported error values and types, by "package.Name", and the text of every error that is
// made, by place.
func errorsIn(t *testing.T, dirs ...string) (named []string, texts map[string]string) {
	t.Helper()
	texts = map[string]string{}
	for _, dir := range dirs {
		paths, err := filepath.Glob(filepath.Join("..", dir, "*.go"))
		must(t, err)
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") {
				continue
			}
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
			must(t, err)
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.FuncDecl: // func (e *T) Error() string
					if n.Name.Name == "Error" && n.Recv != nil && len(n.Type.Params.List) == 0 {
						receiver := n.Recv.List[0].Type
						if star, ok := receiver.(*ast.StarExpr); ok {
							receiver = star.X
						}
						if name := receiver.(*ast.Ident).Name; ast.IsExported(name) {
							named = append(named, file.Name.Name+"."+name)
						}
					}
				case *ast.ValueSpec: // var ErrT = …
					for _, name := range n.Names {
						if strings.HasPrefix(name.Name, "Err") && len(n.Values) > 0 {
							named = append(named, file.Name.Name+"."+name.Name)
						}
					}
				case *ast.CallExpr:
					if f, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 {
						switch fmt.Sprint(f.X, ".", f.Sel) {
						case "errors.New", "fmt.Errorf":
							if text := literal(n.Args[0]); text != "" {
								texts[files.Position(n.Pos()).String()] = text
							}
						}
					}
				}
				return true
			})
		}
	}
	slices.Sort(named)
	return slices.Compact(named), texts
}

// literal is the text of a string literal or of a sum of them.
func literal(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return text
	case *ast.BinaryExpr:
		return literal(e.X) + literal(e.Y)
	}
	return ""
}

var activities = map[string]Activity{
	"Answering": Answering, "Asking": Asking, "Configuring": Configuring, "Copying": Copying, "Drafting": Drafting, "Exporting": Exporting, "Importing": Importing,
	"KeepingAnswer": KeepingAnswer, "Listing": Listing, "Loading": Loading, "Opening": Opening, "Organising": Organising, "Reading": Reading, "Setting": Setting,
	"Showing": Showing, "Starting": Starting, "Stopping": Stopping,
}

func TestEveryActivityIsKnownHere(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "problems.go", nil, parser.SkipObjectResolution)
	must(t, err)
	var found []string
	ast.Inspect(file, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 {
			if made, ok := v.Values[0].(*ast.CompositeLit); ok && fmt.Sprint(made.Type) == "Activity" {
				found = append(found, v.Names[0].Name)
			}
		}
		return true
	})
	slices.Sort(found)
	if known := slices.Sorted(maps.Keys(activities)); !slices.Equal(found, known) {
		t.Fatalf("problems.go has %v; this test knows %v", found, known)
	}
	for name, doing := range activities {
		for i, part := range []string{doing.kept, doing.advice, doing.missing} {
			if optional := i == 2; !wellFormed.MatchString(part) && !(optional && part == "") {
				t.Errorf("%s says %q", name, part)
			}
		}
	}
}

// Whatever call of the page is refused, it goes through guard with its activity: each bound method is one such call.
func TestEveryCallOfThePageSaysWhatWasKept(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join("..", "..", "app.go"), nil, parser.SkipObjectResolution)
	must(t, err)
	methods := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv == nil || !f.Name.IsExported() {
			continue
		}
		methods++
		var with []string
		ast.Inspect(f.Body, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok && slices.Contains([]string{"guard", "change", "changed"}, fmt.Sprint(call.Fun)) {
				if doing, ok := call.Args[1].(*ast.SelectorExpr); ok {
					with = append(with, doing.Sel.Name)
				}
			}
			return true
		})
		if len(with) != 1 || activities[with[0]] == (Activity{}) {
			t.Errorf("%s goes through guard with %v; want one activity", f.Name, with)
		}
	}
	if methods < 30 {
		t.Errorf("only %d bound methods were found", methods)
	}
}

func TestARefusalIsSaidOnce(t *testing.T) {
	said := Listing.Refuse(fmt.Errorf("wrapped: %w", Opening.Refuse(errors.New("x.colibri has no index"))))
	if !strings.HasPrefix(said.Error(), "x.colibri has no index. "+Opening.kept) || strings.Contains(said.Error(), Listing.kept) {
		t.Error(said)
	}
	if err := Listing.Refuse(nil); err != nil {
		t.Errorf("no error became %v", err)
	}
}

// What an activity says was kept is kept: the library and an export with a disk that refuses the write.
func TestARefusedWriteLeavesEverythingAsItWas(t *testing.T) {
	f := newFixture(t)
	kept := addContainer(f, "kept")
	dir := filepath.Join(f.opts.DataDir, "offered")
	must(t, os.MkdirAll(dir, 0o755))
	f.OpenPaths([]string{dir})
	var offer Offer
	must(t, json.Unmarshal(f.wait("offer", nil).Data, &offer))
	broken := filepath.Join(t.TempDir(), "not a folder")
	must(t, os.WriteFile(broken, nil, 0o600))
	keepIn := func(dir string) {
		f.mu.Lock()
		f.opts.DataDir = dir
		f.mu.Unlock()
	}
	whole := f.opts.DataDir
	keepIn(broken)
	if _, err := f.AcceptOffer(offer.ID); err == nil || len(f.Containers()) != 2 {
		t.Errorf("adding: %v; the library is now %v", err, f.Containers())
	}
	if err := f.RemoveContainer(kept); err == nil || len(f.Containers()) != 2 {
		t.Errorf("removing: %v; the library is now %v", err, f.Containers())
	}
	keepIn(whole)
	if _, err := f.AcceptOffer(offer.ID); err != nil || len(f.Containers()) != 3 {
		t.Errorf("the offer, again: %v; the library is now %v", err, f.Containers())
	}

	for what, path := range map[string]string{"below a file": filepath.Join(broken, "chat.md"), "in the place of a folder": whole} {
		if err := WriteExport(path, []byte("# A chat")); err == nil || !strings.Contains(err.Error(), path) || strings.Contains(err.Error(), ".tmp-") {
			t.Errorf("an export %s: %v", what, err)
		}
	}
}

// Every error value and type that a package below exports has advice of its own here.
func TestEveryNamedErrorHasItsAdvice(t *testing.T) {
	examples := map[string]error{
		"engine.NumberError":  &engine.NumberError{Layer: 3, Position: 7},
		"jinja.RaisedError":   &jinja.RaisedError{Message: "roles must alternate"},
		"residency.ErrClosed": residency.ErrClosed,
		"store.ErrGone":       store.ErrGone,
	}
	found, _ := errorsIn(t, below...)
	if known := slices.Sorted(maps.Keys(examples)); !slices.Equal(found, known) {
		t.Errorf("the packages below have %v; this test knows %v: give what is new a remedy in problems.go and an example here", found, known)
	}
	for name, example := range examples {
		i := slices.IndexFunc(remedies, func(r remedy) bool { return r.kind == name })
		if i < 0 {
			t.Errorf("%s has no remedy", name)
			continue
		}
		// As it arrives: wrapped by the layers between.
		said := Answering.say(fmt.Errorf("layer 3: %w", fmt.Errorf("experts of layer 3: %w", example)))
		if !strings.HasSuffix(said, Answering.kept+" "+remedies[i].advice) {
			t.Errorf("%s: %s", name, said)
		}
	}
}

var verb = regexp.MustCompile(`%[-+# 0-9.]*[a-zA-Z%]`)

// Every error that the program makes, whatever its values, becomes a sentence of three parts.
func TestEveryErrorTextBecomesASentence(t *testing.T) {
	_, texts := errorsIn(t, append([]string{"app", ".."}, below...)...)
	if len(texts) < 300 {
		t.Fatalf("only %d errors were found", len(texts))
	}
	statements := strings.Fields("7 /models/x a address and at buffers control expert expected expected: experts hidden if it it's nobody only repeating supported that the then there this")
	for place, text := range texts {
		text = verb.ReplaceAllStringFunc(text, func(v string) string {
			switch v[len(v)-1] {
			case 'w', 'v':
				return "input/output error"
			case 'd', 'x', 'g', 'f':
				return "7"
			case '%':
				return "%"
			}
			return "/models/x"
		})
		if i := strings.LastIndex(text, "; "); i >= 0 {
			word, _, _ := strings.Cut(text[i+2:], " ")
			if !slices.Contains(imperatives, word) && !slices.Contains(statements, word) {
				t.Errorf("%s: after the semicolon, is %q advice? Add it to imperatives in problems.go, or to the statements here: %s", place, word, text)
			}
		}
		for name, doing := range activities {
			said := doing.say(errors.New(text))
			what, advice, ok := strings.Cut(said, " "+doing.kept+" ")
			if !ok || !wellFormed.MatchString(what) || !wellFormed.MatchString(advice) || strings.Contains(said, "%!") {
				t.Errorf("%s, %s: %s", place, name, said)
			}
		}
	}
}

var wellFormed = regexp.MustCompile(`^[^\s.;:,][^\n]*[^\s.;:,][.!?]$`)

func TestWhatTheSystemReportsHasItsAdvice(t *testing.T) {
	_, missing := os.Open(filepath.Join(t.TempDir(), "model-00001.safetensors"))
	for _, c := range []struct {
		doing Activity
		err   error
		want  string
	}{
		{Loading, fmt.Errorf("reading: %w", missing), "Connect the disk"},
		{Answering, fmt.Errorf("experts of layer 4: %w", &os.PathError{Op: "read", Path: "/Volumes/X/out-1.safetensors", Err: syscall.EIO}), "Check that the disk is connected and sound"},
		{Answering, fmt.Errorf("no memory for reads (1 GB): %w", syscall.ENOMEM), "Close other programs"},
		{Loading, &os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}, "Allow Colibri to use this folder"},
		{KeepingAnswer, fmt.Errorf("the answer could not be written to disk: %w", syscall.ENOSPC), "Free some space"},
		{Asking, fmt.Errorf("the question was not kept: %w", missing), "Connect the disk that Colibri's data folder is on"},
		{Exporting, fmt.Errorf("the chat could not be written to /x/chat.md: %w", missing), "Choose a folder that is there"},
		{Opening, errors.New("/x has no config.json; choose the model's folder"), "Choose the model's folder."},
	} {
		if said := c.doing.say(c.err); !strings.Contains(said, c.doing.kept+" "+c.want) {
			t.Errorf("%v: %s", c.err, said)
		}
	}
}

func TestALongReasonKeepsItsAdvice(t *testing.T) {
	said := Loading.say(errors.New(strings.Repeat("é is missing, ", 1000)))
	if len(said) > 2000 || !strings.HasSuffix(said, Loading.kept+" "+Loading.advice) {
		t.Errorf("%d bytes: %s", len(said), said)
	}
}

func TestSentences(t *testing.T) {
	for text, want := range map[string]string{
		"the limit is too low":         "The limit is too low.",
		"config.json is not JSON":      "config.json is not JSON.",
		"/Volumes/X: nothing there.":   "/Volumes/X: nothing there.",
		"metal: the device was lost":   "Metal: the device was lost.",
		"one\ntwo":                     "One; two.",
		"":                             "Something went wrong and gave no reason.",
		"élan":                         "Élan.",
		"is the disk full?":            "Is the disk full?",
		"“Übersicht” cannot be opened": "“Übersicht” cannot be opened.",
	} {
		if got := asSentence(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}
