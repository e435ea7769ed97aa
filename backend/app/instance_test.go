package app

import (
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func claim(t *testing.T, dir string) *Instance {
	t.Helper()
	i, err := Claim(dir, nil)
	must(t, err)
	t.Cleanup(func() { _ = i.Close() })
	return i
}

func TestASecondStartHandsItsPathsToTheFirst(t *testing.T) {
	for name, dir := range map[string]string{"here": t.TempDir(), "deep": filepath.Join(t.TempDir(), strings.Repeat("deep ", 30))} {
		t.Run(name, func(t *testing.T) {
			must(t, os.MkdirAll(dir, 0o700))
			first := claim(t, dir)
			handed := make(chan []string, 10)
			served := make(chan struct{})
			go func() { first.Serve(func(paths []string) { handed <- paths }); close(served) }()
			want := []string{"/models/GLM 5.2 é.colibri", "/models/two\nlines"}
			for range 2 {
				if _, err := Claim(dir, want); !errors.Is(err, ErrHandedOver) {
					t.Fatalf("a second start: %v", err)
				}
				if got := <-handed; !slices.Equal(got, want) {
					t.Errorf("handed over: %q", got)
				}
			}
			must(t, first.Close())
			<-served
			again, err := Claim(dir, nil) // the folder is free again
			must(t, err)
			must(t, again.Close())
		})
	}
}

func TestTwoDataFoldersAreTwoPrograms(t *testing.T) {
	claim(t, t.TempDir())
	claim(t, t.TempDir())
}

// What a start before the first one listens asks for is not lost, and garbage does not stop the next.
func TestHandingOverWaitsAndGarbageIsIgnored(t *testing.T) {
	dir := t.TempDir()
	first := claim(t, dir)
	done := make(chan error, 1)
	go func() { _, err := Claim(dir, []string{"/a"}); done <- err }()
	garbage, err := net.Dial("unix", socketPath(dir))
	must(t, err)
	_, err = garbage.Write([]byte("{not json"))
	must(t, err)
	must(t, garbage.Close())
	handed := make(chan []string, 1)
	go first.Serve(func(paths []string) { handed <- paths })
	if got := <-handed; !slices.Equal(got, []string{"/a"}) {
		t.Errorf("handed over: %q", got)
	}
	if err := <-done; !errors.Is(err, ErrHandedOver) {
		t.Error(err)
	}
}

// Started while the first one is closing, the second waits for the folder instead of handing over to a program that is about to end.
func TestAStartDuringTheEndOfAnotherBecomesTheFirst(t *testing.T) {
	dir := t.TempDir()
	first := claim(t, dir)
	handed := make(chan []string, 1)
	served := make(chan struct{})
	go func() { first.Serve(func(paths []string) { handed <- paths }); close(served) }()
	must(t, first.StopServing())
	<-served
	second := make(chan error, 1)
	go func() {
		i, err := Claim(dir, []string{"/a"})
		if err == nil {
			err = i.Close()
		}
		second <- err
	}()
	must(t, first.Close())
	if err := <-second; err != nil {
		t.Error(err)
	}
	if len(handed) > 0 {
		t.Error("a closing program was given paths")
	}
}

// A killed program leaves its socket and its lock's file; neither is in the way.
func TestAfterAKillTheNextStartIsTheFirst(t *testing.T) {
	dir := t.TempDir()
	helper := exec.Command(os.Args[0])
	helper.Env = append(os.Environ(), claimDir+"="+dir)
	out, err := helper.StdoutPipe()
	must(t, err)
	must(t, helper.Start())
	line := make([]byte, 8)
	_, err = out.Read(line)
	must(t, err)
	if _, err := os.Stat(socketPath(dir)); err != nil {
		t.Fatal(err)
	}
	must(t, helper.Process.Kill())
	_ = helper.Wait()
	claim(t, dir)
}

// claimDir, in the environment, makes the test program claim the folder and wait.
const claimDir = "COLIBRI_CLAIM_HELPER"

func TestPathArguments(t *testing.T) {
	got := PathArguments([]string{"-psn_0_123", "", "/a/b.colibri", "c d.colibri", "../é", "--flag"}, "/home/here")
	if want := []string{"/a/b.colibri", "/home/here/c d.colibri", "/home/é"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// What was opened before any page was there waits in the state: every path its own offer, good or bad.
func TestPathsOpenedBeforeThePageWait(t *testing.T) {
	f := newFixture(t)
	good, other := filepath.Join(t.TempDir(), "a b é.colibri"), filepath.Join(t.TempDir(), "second")
	must(t, os.MkdirAll(good, 0o755))
	must(t, os.MkdirAll(other, 0o755))
	inside := filepath.Join(other, "config.json")
	must(t, os.WriteFile(inside, []byte("{}"), 0o600))
	f.OpenPaths([]string{good, inside, "/not/there.colibri", "relative.colibri", "https://example.com/x"})
	for range 5 {
		f.wait("offer", nil)
	}
	s, err := f.State() // the page's first question
	must(t, err)
	offers := map[string]Offer{}
	for _, o := range s.Offers {
		offers[o.Path] = o
	}
	if len(offers) != 5 {
		t.Fatalf("%d offers: %+v", len(offers), s.Offers)
	}
	for _, path := range []string{good, other} {
		if o := offers[path]; o.Container == nil || o.Error != "" {
			t.Errorf("%s: %+v", path, o)
		}
	}
	for path, want := range map[string]string{
		"/not/there.colibri": "There is nothing at", "relative.colibri": "not the full path", "https://example.com/x": "not the full path",
	} {
		if o := offers[path]; o.Container != nil || !strings.Contains(o.Error, want) || !strings.Contains(o.Error, Opening.kept) {
			t.Errorf("%s: %+v", path, o)
		}
	}
	// A reloaded page finds them again until they are answered.
	for _, o := range s.Offers {
		f.DismissOffer(o.ID)
	}
	s, err = f.State()
	must(t, err)
	if len(s.Offers) != 0 {
		t.Errorf("dismissed, and still there: %+v", s.Offers)
	}
}

func TestTheWindowsPlaceIsRememberedAcrossStarts(t *testing.T) {
	dir := t.TempDir()
	at := Window{X: 40, Y: -12, Width: 1300, Height: 900, Maximised: true}
	for _, want := range []Window{{}, at} {
		a, err := New(Options{DataDir: dir, Engine: newScriptedEngine(), Store: newMemoryStore(), Send: func(Event) {}})
		must(t, err)
		if got := a.Settings().Window; got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		must(t, a.RememberWindow(at))
		s := a.Settings()
		s.Window = Window{} // a page's copy is old: it must not undo what the window remembers
		must(t, a.SaveSettings(s))
		closeApp(t, a)
	}
}

// A crash while settings are written leaves the old ones: what a dead write left beside them is not read.
func TestSettingsSurviveACrashInTheMiddleOfAWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "settings.json")
	s := DefaultSettings()
	s.Appearance = "dark"
	must(t, writeJSON(path, s))
	must(t, os.WriteFile(filepath.Join(dir, ".tmp-123"), []byte(`{"appearance": "li`), 0o600))
	got, notice, err := readSettings(path)
	if err != nil || notice != "" || got.Appearance != "dark" {
		t.Errorf("%q, %q, %v", got.Appearance, notice, err)
	}
	// A write that fails (here: the folder is gone) changes neither the file nor what the program holds.
	a, err := New(Options{DataDir: dir, Engine: newScriptedEngine(), Store: newMemoryStore(), Send: func(Event) {}})
	must(t, err)
	defer closeApp(t, a)
	must(t, os.Rename(dir, dir+"-away"))
	s.Appearance = "light"
	if err := a.SaveSettings(s); err == nil || a.Settings().Appearance != "dark" {
		t.Errorf("%v; the settings are %q", err, a.Settings().Appearance)
	}
	must(t, os.Rename(dir+"-away", dir))
	var onDisk Settings
	raw, err := os.ReadFile(path)
	must(t, err)
	must(t, json.Unmarshal(raw, &onDisk))
	if onDisk.Appearance != "dark" {
		t.Errorf("on disk: %q", onDisk.Appearance)
	}
}

func TestTheLogMakesRoomForItself(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	log, err := OpenLog(dir)
	must(t, err)
	line := []byte(strings.Repeat("x", 1<<16-1) + "\n")
	write := func(n int, first byte) {
		for range n {
			line[0] = first
			_, err := log.Write(line)
			must(t, err)
		}
	}
	perFile := maxLogBytes / len(line)
	for i, first := range []byte("abcde") {
		write(perFile, first)
		if i == 2 { // a restart goes on where it was
			must(t, log.Close())
			log, err = OpenLog(dir)
			must(t, err)
		}
	}
	must(t, log.Close())
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	must(t, err)
	if len(names) != keptLogs {
		t.Errorf("kept: %v", names)
	}
	for i, first := range []byte("edc") {
		content, err := os.ReadFile(log.name(i))
		must(t, err)
		if len(content) == 0 || len(content) > maxLogBytes || content[0] != first {
			t.Errorf("%s: %d bytes beginning with %q", log.name(i), len(content), content[:1])
		}
	}
}
