package app

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"colibri/backend/bundled"
)

// helperDir, in the environment, makes the test program a whole Colibri without a window, whose user never rests, until it is killed.
const helperDir = "COLIBRI_APP_HELPER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(helperDir); dir != "" {
		if err := useUntilKilled(dir); err != nil {
			fmt.Println(mustJSON(report{Kind: "error", Text: err.Error()}))
			os.Exit(1)
		}
	}
	if dir := os.Getenv(claimDir); dir != "" {
		if _, err := Claim(dir, nil); err != nil {
			os.Exit(1)
		}
		fmt.Println("claimed")
		time.Sleep(time.Minute) // killed long before
	}
	os.Exit(m.Run())
}

// report is one line that the killed program wrote: what it is about to do ("try"), what a call that has returned did ("ok"), or text that
// reached the page ("piece").
type report struct {
	Kind   string // try, ok, piece, error
	What   string // conversation, title, draft, deleted, restored, question, answer, done, window, library
	ID     string
	Of     string // the conversation of a question or an answer
	Text   string
	Millis int64 // since it began
}

func mustJSON(v any) string {
	raw, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(raw)
}

// useUntilKilled is the scripted session: chats with the bundled model, and everything else that is written to disk.
func useUntilKilled(dir string) error {
	began := time.Now()
	var writing sync.Mutex
	tellOf := func(kind, what, id, of, text string) {
		writing.Lock()
		defer writing.Unlock()
		fmt.Println(mustJSON(report{kind, what, id, of, text, time.Since(began).Milliseconds()}))
	}
	tell := func(kind, what, id, text string) { tellOf(kind, what, id, "", text) }
	store, notices, err := OpenStore(filepath.Join(dir, "conversations.db"))
	if err != nil {
		return err
	}
	if len(notices) > 0 {
		return fmt.Errorf("opening said: %v", notices)
	}
	ended := make(chan string, 1000)
	offers := make(chan Offer, 10)
	pieces := make(chan struct{}, 100_000)
	a, err := New(Options{
		DataDir: dir, Engine: slowEngine{RealEngine(filepath.Join(dir, "cache"))}, Store: store, Bundled: bundled.Path,
		Send: func(e Event) {
			switch e.Kind {
			case "piece":
				var p Piece
				_ = json.Unmarshal(e.Data, &p) // made by this program
				tell("piece", "", p.Message, p.Text)
				pieces <- struct{}{}
			case "message":
				var m Message
				_ = json.Unmarshal(e.Data, &m)
				ended <- m.ID
			case "offer":
				var o Offer
				_ = json.Unmarshal(e.Data, &o)
				offers <- o
			case "notice":
				var n Notice
				_ = json.Unmarshal(e.Data, &n)
				if n.Level != "info" {
					tell("error", "", "", n.Text)
				}
			}
		},
	})
	if err != nil {
		return err
	}
	// do says what it is about to do, does it, and says that it is done.
	do := func(what, id, text string, call func() error) error {
		tell("try", what, id, text)
		if err := call(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		tell("ok", what, id, text)
		return nil
	}
	random := rand.New(rand.NewPCG(uint64(os.Getpid()), 7))
	sampling := balanced()
	answer := func(r GenerateRequest, stopAfter int) (Generated, error) {
		r.Sampling = &sampling
		tell("try", "question", r.Conversation, r.Text)
		g, err := a.Generate(r)
		if err != nil {
			return g, err
		}
		if g.Question != "" {
			tellOf("ok", "question", g.Question, r.Conversation, r.Text)
		}
		tellOf("ok", "answer", g.Answer, r.Conversation, "")
		for n := 0; ; {
			select {
			case <-pieces:
				if n++; n == stopAfter {
					a.Stop(r.Conversation)
				}
				continue
			case id := <-ended:
				if id != g.Answer {
					continue
				}
			}
			break
		}
		t, err := a.Transcript(r.Conversation)
		if err != nil {
			return g, err
		}
		for _, m := range t.Messages {
			if m.ID == g.Answer {
				if m.State == MessageFailed {
					return g, fmt.Errorf("an answer failed: %s", m.Error)
				}
				tellOf("ok", "done", m.ID, r.Conversation, m.Text)
			}
		}
		return g, nil
	}
	if path, err := bundled.Path(context.Background()); err != nil {
		return err
	} else if a.OpenPaths([]string{path}); true {
		offer := <-offers
		if offer.Container == nil {
			return fmt.Errorf("the bundled model was refused: %s", offer.Error)
		}
		id, err := a.AcceptOffer(offer.ID)
		if err != nil {
			return err
		}
		tell("ok", "library", id, "")
	}
	for n := 0; ; n++ {
		c, err := a.NewConversation()
		if err != nil {
			return err
		}
		tell("ok", "conversation", c.ID, "")
		sampling.MaxTokens = 20 + random.IntN(200)
		first, err := answer(GenerateRequest{Conversation: c.ID, Mode: "send", Text: fmt.Sprintf("Question %d: what does a hummingbird do?", n)}, 20+random.IntN(200))
		if err != nil {
			return err
		}
		sampling.MaxTokens = 20 + random.IntN(60)
		if _, err = answer(GenerateRequest{Conversation: c.ID, Mode: "continue", Parent: first.Answer}, 0); err != nil {
			return err
		}
		if _, err = answer(GenerateRequest{Conversation: c.ID, Mode: "regenerate", Parent: first.Question}, 0); err != nil {
			return err
		}
		title, draft := fmt.Sprintf("Chat %d of %d", n, os.Getpid()), fmt.Sprintf("typed %d", random.Int())
		at := Window{X: random.IntN(1000), Y: n, Width: 900, Height: 600}
		steps := []error{
			do("title", c.ID, title, func() error { return a.Rename(c.ID, title) }),
			do("draft", c.ID, draft, func() error { return a.SaveDraft(c.ID, draft) }),
			do("window", "", mustJSON(at), func() error { return a.RememberWindow(at) }),
		}
		if n%3 == 1 {
			steps = append(steps, do("deleted", c.ID, "", func() error { return a.Delete(c.ID) }))
		}
		if n%6 == 1 {
			steps = append(steps, do("restored", c.ID, "", func() error { return a.Restore(c.ID) }))
		}
		for _, err := range steps {
			if err != nil {
				return err
			}
		}
	}
}

// slowEngine answers at the pace of a large model, so that kills fall into answers that are older than a second.
type slowEngine struct{ Engine }

func (e slowEngine) Load(ctx context.Context, dir, backend string, memoryBytes int64, progress func(string, float64)) (Model, error) {
	m, err := e.Engine.Load(ctx, dir, backend, memoryBytes, progress)
	if err != nil {
		return nil, err
	}
	return slowModel{m}, nil
}

type slowModel struct{ Model }

func (m slowModel) Answer(ctx context.Context, r Request, emit func(Token) error) (Answered, error) {
	return m.Model.Answer(ctx, r, func(t Token) error {
		time.Sleep(150 * time.Millisecond)
		return emit(t)
	})
}

// memory is what the killed programs said, and so must be there.
type memory struct {
	living     map[string]bool             // conversations; those with a deletion or restoration under way are in neither state
	unsure     map[string]bool             // their deletion or restoration was under way
	values     map[string]string           // "title ID", "draft ID", "window ": acknowledged last
	attempt    map[string]string           // of the same: under way when the program was killed
	messages   map[string]string           // questions and answers that are done: exact text
	of         map[string]string           // their conversations
	open       map[string]*strings.Builder // answers that were being written: what reached the page
	at         map[string][]pieceAt
	containers []string
	last       int64
}

type pieceAt struct {
	end    int // length of the text with it
	millis int64
}

func (m *memory) take(r report) {
	m.last = r.Millis
	key := r.What + " " + r.ID
	switch {
	case r.Kind == "piece":
		if m.open[r.ID] == nil {
			m.open[r.ID] = &strings.Builder{}
		}
		m.open[r.ID].WriteString(r.Text)
		m.at[r.ID] = append(m.at[r.ID], pieceAt{m.open[r.ID].Len(), r.Millis})
	case r.Kind == "try" && (r.What == "deleted" || r.What == "restored"):
		m.unsure[r.ID] = true
	case r.Kind == "try":
		m.attempt[key] = r.Text
	case r.What == "conversation", r.What == "restored":
		m.living[r.ID] = true
		delete(m.unsure, r.ID)
	case r.What == "deleted":
		delete(m.living, r.ID)
		delete(m.unsure, r.ID)
	case r.What == "question":
		m.of[r.ID] = r.Of
		m.messages[r.ID] = r.Text
	case r.What == "answer":
		// Taken up again, it begins with what it had.
		b := &strings.Builder{}
		b.WriteString(m.messages[r.ID])
		delete(m.messages, r.ID)
		if before := m.open[r.ID]; before != nil { // pieces may be told before the call's return
			b.WriteString(before.String())
		}
		m.open[r.ID], m.of[r.ID] = b, r.Of
	case r.What == "done":
		m.messages[r.ID] = r.Text
		delete(m.open, r.ID)
		delete(m.at, r.ID)
	case r.What == "library":
		m.containers = append(m.containers, r.ID)
	default:
		m.values[key] = r.Text
		delete(m.attempt, key)
	}
}

// The whole program, killed at any moment, has lost nothing that is older than a second and opens again. COLIBRI_SOAK=1 kills ten times as often.
func TestTheWholeProgramKilledAtAnyMoment(t *testing.T) {
	kills := 5
	if os.Getenv("COLIBRI_SOAK") == "1" {
		kills = 50
	}
	const seed = 20261130
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	dir := t.TempDir()
	m := &memory{living: map[string]bool{}, unsure: map[string]bool{}, values: map[string]string{}, attempt: map[string]string{}, messages: map[string]string{}, of: map[string]string{}}
	for kill := range kills {
		after := time.Duration(random.IntN(3500)) * time.Millisecond // of which about a third opens the program and loads the model
		m.open, m.at, m.last = map[string]*strings.Builder{}, map[string][]pieceAt{}, 0
		helper := exec.Command(os.Args[0])
		helper.Env = append(os.Environ(), helperDir+"="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "home"), "HOME="+filepath.Join(dir, "home"))
		out, err := helper.StdoutPipe()
		must(t, err)
		must(t, helper.Start())
		// Every other time the clock begins with the first answer: on a busy machine the program may take long to come so far.
		kill9 := func() { _ = helper.Process.Kill() }
		var timer *time.Timer
		if kill%2 == 1 {
			timer = time.AfterFunc(after, kill9)
		}
		lines := bufio.NewReader(out)
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil { // the last line may be half
				break
			}
			var r report
			must(t, json.Unmarshal(line, &r))
			if r.Kind == "error" {
				t.Errorf("kill %d: the program said: %s", kill, r.Text)
			}
			if timer == nil && r.What == "answer" {
				timer = time.AfterFunc(after, kill9)
			}
			m.take(r)
		}
		if timer != nil {
			timer.Stop()
		}
		_ = helper.Wait() // killed
		m.check(t, fmt.Sprintf("kill %d after %v", kill, after), dir)
		if t.Failed() {
			return
		}
	}
	t.Logf("%d conversations, %d messages", len(m.living), len(m.messages))
	if len(m.messages) == 0 {
		t.Error("nothing was written before the kills")
	}
}

// check opens what the killed program left, and compares.
func (m *memory) check(t *testing.T, when, dir string) {
	t.Helper()
	path := filepath.Join(dir, "conversations.db")
	store, notices, err := OpenStore(path)
	if err != nil || len(notices) > 0 {
		t.Fatalf("%s: %v, %v", when, notices, err)
	}
	var said []string
	a, err := New(Options{
		DataDir: dir, Engine: RealEngine(filepath.Join(dir, "cache")), Store: store, Bundled: bundled.Path,
		Send: func(e Event) {
			if e.Kind == "notice" {
				said = append(said, string(e.Data))
			}
		},
	})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	conversations, err := store.Conversations()
	must(t, err)
	there := map[string]Conversation{}
	stored := map[string]Message{}
	for _, c := range conversations {
		there[c.ID] = c
		messages, err := store.Messages(c.ID)
		must(t, err)
		for _, msg := range messages {
			stored[msg.ID] = msg
			if msg.State == MessageStreaming {
				t.Errorf("%s: message %s is still being written", when, msg.ID)
			}
		}
	}
	for id := range m.unsure { // either is right; what it is now is how it stays
		if _, ok := there[id]; ok {
			m.living[id] = true
		} else {
			delete(m.living, id)
		}
	}
	clear(m.unsure)
	for id := range m.living {
		if _, ok := there[id]; !ok {
			t.Errorf("%s: conversation %s is lost", when, id)
		}
	}
	for id := range there {
		if !m.living[id] {
			m.living[id] = true // made, and killed before it was told
		}
	}
	for key, want := range m.values {
		what, id, _ := strings.Cut(key, " ")
		if what != "window" && !m.living[id] {
			delete(m.values, key)
			continue
		}
		got := map[string]string{"title": there[id].Title, "draft": there[id].Draft, "window": mustJSON(a.Settings().Window)}[what]
		if got != want && got != m.attempt[key] {
			t.Errorf("%s: %s is %q, want %q or %q", when, key, got, want, m.attempt[key])
		}
		m.values[key] = got
	}
	clear(m.attempt)
	for id, want := range m.messages {
		got, ok := stored[id]
		switch {
		case !ok && m.living[m.of[id]]:
			t.Errorf("%s: message %s is lost", when, id)
		case !ok: // deleted with its conversation
			delete(m.messages, id)
		case got.Text != want:
			t.Errorf("%s: message %s is %q, want %q", when, id, got.Text, want)
		}
	}
	for id, text := range m.open {
		got, ok := stored[id]
		if !ok && m.living[m.of[id]] {
			t.Errorf("%s: answer %s is lost", when, id)
		}
		if !ok {
			continue
		}
		shown := text.String()
		if !strings.HasPrefix(shown, got.Text) && !strings.HasPrefix(got.Text, shown) {
			t.Errorf("%s: answer %s is %q, the page had %q", when, id, got.Text, shown)
		}
		for _, p := range m.at[id] {
			if m.last-p.millis > 1000 && len(got.Text) < p.end {
				t.Errorf("%s: answer %s has %d bytes; %d bytes were on the page %d ms before the end", when, id, len(got.Text), p.end, m.last-p.millis)
				break
			}
		}
		m.messages[id] = got.Text
	}
	for _, id := range m.containers {
		if _, ok := a.containerLocked(id); !ok {
			t.Errorf("%s: model %s is not in the list any more", when, id)
		}
	}
	if files, _ := filepath.Glob(filepath.Join(dir, "cache", "kv", "*.kv")); len(files) > len(there) {
		t.Errorf("%s: %d conversations have %d files of keys and values", when, len(there), len(files))
	}
	closeApp(t, a)
	if len(said) > 0 {
		t.Errorf("%s: opening said %v", when, said)
	}
	db, err := sql.Open("sqlite", path)
	must(t, err)
	var sound string
	must(t, db.QueryRow(`PRAGMA integrity_check`).Scan(&sound))
	must(t, db.Close())
	if sound != "ok" {
		t.Errorf("%s: the database is not sound: %s", when, sound)
	}
}
