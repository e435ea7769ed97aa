package app

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"colibri/backend/bundled"
)

func TestADeletedConversationLeavesNothingOnTheEnginesDisk(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	kept, gone, during := f.newChat(), f.newChat(), f.newChat()
	for _, id := range []string{kept, gone} {
		g := f.send(id, "", "Hello")
		<-model.requests
		model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
		f.finished(g.Answer)
	}
	f.must(f.Delete(gone))
	if left := f.engine.putAway(); !slices.Equal(left, []string{kept}) {
		t.Errorf("after deleting: %v, want %v", left, kept)
	}
	// Deleted in the middle of an answer, which is put away when it ends.
	g := f.send(during, "", "Hello")
	<-model.requests
	f.must(f.Delete(during))
	f.finished(g.Answer)
	waitFor(t, func() bool { return slices.Equal(f.engine.putAway(), []string{kept}) })
}

func TestWhatIsLeftOfGoneConversationsIsSweptAtTheStart(t *testing.T) {
	store, engine := newMemoryStore(), newScriptedEngine()
	must(t, store.PutConversation(Conversation{ID: "kept"}))
	must(t, store.PutConversation(Conversation{ID: "deleted"}))
	must(t, store.Delete("deleted"))
	for _, id := range []string{"kept", "deleted", "of cleared data"} {
		engine.put[id] = true
	}
	a, err := New(Options{DataDir: t.TempDir(), Engine: engine, Store: store, Send: func(Event) {}})
	must(t, err)
	defer a.Close(context.Background())
	if left := engine.putAway(); !slices.Equal(left, []string{"kept"}) {
		t.Errorf("left: %v", left)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The same with the real engine, the bundled model and the real database: the files hold what was said, as token ids.
func TestTheFilesOfADeletedConversationGo(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "cache", "kv", "*")
	files := func() []string {
		names, err := filepath.Glob(kept)
		must(t, err)
		return names
	}
	a, events := realApp(t, dir)
	var ids []string
	for range 2 {
		c, err := a.NewConversation()
		must(t, err)
		ids = append(ids, c.ID)
		sampling := balanced()
		sampling.MaxTokens = 8
		g, err := a.Generate(GenerateRequest{Conversation: c.ID, Mode: "send", Text: "What does a hummingbird eat?", Sampling: &sampling})
		must(t, err)
		awaitMessage(t, events, g.Answer)
	}
	if n := len(files()); n != 2 {
		t.Fatalf("two conversations are kept in %d files", n)
	}
	must(t, a.Delete(ids[0]))
	if n := len(files()); n != 1 {
		t.Errorf("after deleting one of two, %d files are left", n)
	}
	closeApp(t, a)
	// Cleared by hand: a fresh database, old files.
	for _, name := range []string{"conversations.db", "conversations.db-wal", "conversations.db-shm"} {
		_ = os.Remove(filepath.Join(dir, name))
	}
	b, _ := realApp(t, dir)
	if left := files(); len(left) != 0 {
		t.Errorf("after clearing: %v", left)
	}
	closeApp(t, b)
}

// realApp opens everything but the window in a data folder.
func realApp(t *testing.T, dir string) (*App, chan Event) {
	t.Helper()
	store, notices, err := OpenStore(filepath.Join(dir, "conversations.db"))
	must(t, err)
	events := make(chan Event, 100_000)
	a, err := New(Options{
		DataDir: dir, Engine: RealEngine(filepath.Join(dir, "cache")), Store: store, Bundled: bundled.Path, Notices: notices,
		Send: func(e Event) { events <- e },
	})
	must(t, err)
	return a, events
}

func closeApp(t *testing.T, a *App) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	must(t, a.Close(ctx))
}

// awaitMessage waits for the end of an answer.
func awaitMessage(t *testing.T, events chan Event, id string) {
	t.Helper()
	for deadline := time.After(60 * time.Second); ; {
		select {
		case e := <-events:
			if e.Kind == "message" && contains(e, id) {
				return
			}
		case <-deadline:
			t.Fatalf("the answer %s did not end", id)
		}
	}
}
