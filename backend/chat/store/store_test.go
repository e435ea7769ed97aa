package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
)

func openAt(t testing.TB, path string) *Store {
	t.Helper()
	s, notices, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if len(notices) > 0 {
		t.Fatalf("notices %q", notices)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func fresh(t testing.TB) (*Store, string) {
	path := filepath.Join(t.TempDir(), "conversations.db")
	return openAt(t, path), path
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func conversation(id, title string, updated int64) Conversation {
	return Conversation{ID: id, Title: title, Created: updated, Updated: updated}
}

func message(id, in, parent, text string) Message {
	return Message{ID: id, Conversation: in, Parent: parent, Role: "user", Text: text, State: "done", Created: 1}
}

func TestWhatIsPutComesBack(t *testing.T) {
	s, path := fresh(t)
	c := Conversation{ID: "c1", Title: "Tïtle 'quoted'", Pinned: true, Created: 1, Updated: 2, Head: "m2", Model: "bundled", SystemPrompt: "Be\nbrief.",
		Sampling: json.RawMessage(`{"temperature":0.5}`), Draft: "half a tho"}
	m1 := Message{ID: "m1", Conversation: "c1", Role: "user", Text: "q\x00\U000F0001é", State: "done", Created: 3}
	m2 := Message{ID: "m2", Conversation: "c1", Parent: "m1", Role: "assistant", Text: "a", Thinking: "why", State: "failed", Error: "e", Receipt: json.RawMessage(`{"seed":7}`), Created: 4}
	other := Message{ID: "m3", Conversation: "c1", Parent: "m1", Role: "assistant", Text: "b", State: "done", Created: 5} // a second answer
	must(t, s.PutConversation(c))
	for _, m := range []Message{m1, m2, other} {
		must(t, s.PutMessage(m))
	}
	check := func(s *Store) {
		t.Helper()
		got, err := s.Conversation("c1")
		if err != nil || !reflect.DeepEqual(got, c) {
			t.Errorf("conversation %+v, %v", got, err)
		}
		messages, err := s.Messages("c1")
		if err != nil || !reflect.DeepEqual(messages, []Message{m1, m2, other}) {
			t.Errorf("messages %+v, %v", messages, err)
		}
	}
	check(s)
	c.Title, c.Sampling, c.Draft = "other", nil, ""
	m2.Text, m2.Receipt = "changed", nil
	must(t, s.PutConversation(c))
	must(t, s.PutMessage(m2))
	check(s)
	must(t, s.Close())
	check(openAt(t, path))
}

func TestConversationsAreListedLatestFirst(t *testing.T) {
	s, _ := fresh(t)
	for i, id := range []string{"a", "b", "c"} {
		must(t, s.PutConversation(conversation(id, id, int64(i))))
	}
	must(t, s.PutConversation(conversation("a", "a", 9)))
	all, err := s.Conversations()
	must(t, err)
	if len(all) != 3 || all[0].ID != "a" || all[1].ID != "c" || all[2].ID != "b" {
		t.Errorf("got %+v", all)
	}
}

func TestPutAllKeepsAllOrNothing(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("first", "x", 1)))
	_, err := s.write.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON messages WHEN new.id = 'bad' BEGIN SELECT RAISE(ABORT, 'refused'); END`)
	must(t, err)
	err = s.PutAll([]Conversation{conversation("c", "t", 1)}, []Message{message("m", "c", "", "x"), message("bad", "c", "m", "x")})
	if err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("error %v", err)
	}
	if _, err := s.Conversation("c"); !errors.Is(err, ErrGone) {
		t.Errorf("half of it was kept: %v", err)
	}
	must(t, s.PutAll([]Conversation{conversation("c", "t", 1)}, []Message{message("m", "c", "", "x"), message("n", "c", "m", "x")}))
	if m, _ := s.Messages("c"); len(m) != 2 {
		t.Errorf("messages %v", m)
	}
}

func TestStreamedTextIsReadAsItGrowsAndFoundWhenItIsDone(t *testing.T) {
	s, path := fresh(t)
	must(t, s.PutConversation(conversation("c", "t", 1)))
	answer := Message{ID: "m", Conversation: "c", Role: "assistant", State: Streaming}
	must(t, s.PutMessage(answer))
	for i := range 10 {
		must(t, s.AppendText("m", fmt.Sprintf("word%d ", i), fmt.Sprintf("t%d ", i)))
		answer.Text += fmt.Sprintf("word%d ", i)
		answer.Thinking += fmt.Sprintf("t%d ", i)
		m, err := s.Messages("c")
		must(t, err)
		if m[0].Text != answer.Text || m[0].Thinking != answer.Thinking {
			t.Fatalf("after %d pieces: %+v", i+1, m[0])
		}
	}
	if hits, _ := s.Search("word3", 9); len(hits) != 0 {
		t.Errorf("an unfinished answer is in the index: %v", hits)
	}
	must(t, s.AppendText("m", "last", ""))
	answer.State, answer.Text = "done", answer.Text+"last"
	must(t, s.PutMessage(answer))
	if m, _ := s.Messages("c"); m[0].Text != answer.Text {
		t.Errorf("text appended before was added to the final one: %q", m[0].Text)
	}
	if hits, _ := s.Search("word3 last", 9); len(hits) != 1 {
		t.Errorf("found %v", hits)
	}
	// Taken up again, it is searched again only when it ends.
	answer.State = Streaming
	must(t, s.PutMessage(answer))
	must(t, s.AppendText("m", " continued", ""))
	if hits, _ := s.Search("word3", 9); len(hits) != 0 {
		t.Errorf("found %v", hits)
	}
	must(t, s.Close())
	s = openAt(t, path)
	m, err := s.Messages("c")
	must(t, err)
	if m[0].State != Interrupted || m[0].Text != answer.Text+" continued" {
		t.Errorf("after a restart: %+v", m[0])
	}
	if hits, _ := s.Search("word3 continued", 9); len(hits) != 1 {
		t.Errorf("found %v", hits)
	}
}

func TestManyGoroutines(t *testing.T) {
	s, _ := fresh(t)
	var all sync.WaitGroup
	for g := range 8 {
		all.Add(1)
		go func() {
			defer all.Done()
			id := fmt.Sprintf("c%d", g)
			if err := s.PutConversation(conversation(id, id, int64(g))); err != nil {
				t.Error(err)
			}
			if err := s.PutMessage(Message{ID: id + "m", Conversation: id, State: Streaming}); err != nil {
				t.Error(err)
			}
			for i := range 50 {
				if err := s.AppendText(id+"m", fmt.Sprint(i, " "), ""); err != nil {
					t.Error(err)
				}
				if i%10 == 0 {
					if _, err := s.Conversations(); err != nil {
						t.Error(err)
					}
				}
			}
			m, err := s.Messages(id)
			if err != nil || len(m) != 1 || len(strings.Fields(m[0].Text)) != 50 {
				t.Errorf("%v, %v", m, err)
			}
		}()
	}
	all.Wait()
}

func TestAClosedStoreSaysSo(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.Close())
	must(t, s.Close())
	if err := s.PutConversation(conversation("c", "", 1)); !errors.Is(err, errClosed) {
		t.Errorf("error %v", err)
	}
	if err := s.AppendText("m", "x", ""); !errors.Is(err, errClosed) {
		t.Errorf("error %v", err)
	}
}

func TestAFullDiskKeepsStreamedTextUntilThereIsSpace(t *testing.T) {
	s, path := fresh(t)
	must(t, s.PutConversation(conversation("c", "t", 1)))
	must(t, s.PutMessage(Message{ID: "m", Conversation: "c", State: Streaming}))
	var pages int
	must(t, s.write.QueryRow(`PRAGMA page_count`).Scan(&pages))
	limit := func(n int) {
		_, err := s.write.Exec(fmt.Sprintf(`PRAGMA max_page_count = %d`, n))
		must(t, err)
	}
	limit(pages) // as if the disk were full
	long := strings.Repeat("long text ", 5000)
	must(t, s.AppendText("m", long, ""))
	err := s.PutConversation(conversation("d", long, 1))
	if err == nil || !strings.Contains(err.Error(), "is full; free some space") {
		t.Fatalf("error %v", err)
	}
	if err := s.AppendText("m", "end", ""); err == nil || !strings.Contains(err.Error(), "is full") {
		t.Errorf("the next piece does not say that the one before is not on the disk: %v", err)
	}
	limit(1 << 30)
	must(t, s.PutConversation(conversation("d", long, 1)))
	must(t, s.Close())
	m, err := openAt(t, path).Messages("c")
	must(t, err)
	if m[0].Text != long+"end" {
		t.Errorf("%d bytes of text, expected %d", len(m[0].Text), len(long)+3)
	}
}

type coded int

func (c coded) Error() string { return "SQLite's words" }

func (c coded) Code() int { return int(c) }

func TestErrorsAreSentences(t *testing.T) {
	s := &Store{path: filepath.Join("dir", "file.db")}
	for code, want := range map[int]string{
		13: "the disk with dir is full; free some space", 8: "cannot be written to dir; check that you may write", 14: "cannot be written to dir", 3: "cannot be written to dir",
		5: "another program is using dir/file.db", 6: "another program", 11: "dir/file.db is damaged; restart", 26: "is damaged", 10: "reports an error; check that it is connected",
		10 | 3<<8: "reports an error", 11 | 1<<8: "is damaged", 1: "dir/file.db: in a transaction: SQLite's words",
	} {
		err := s.explain(fmt.Errorf("in a transaction: %w", coded(code)))
		if !strings.Contains(filepath.ToSlash(err.Error()), want) {
			t.Errorf("code %d: %v", code, err)
		}
	}
	if err := s.explain(ErrGone); err != ErrGone {
		t.Errorf("%v", err)
	}
}
