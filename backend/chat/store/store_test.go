package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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

func TestDeletingCanBeUndoneUntilTheNextStart(t *testing.T) {
	s, path := fresh(t)
	must(t, s.PutConversation(conversation("c", "title", 1)))
	must(t, s.PutMessage(message("m", "c", "", "secretword")))
	must(t, s.PutConversation(conversation("stays", "title", 1)))
	must(t, s.PutMessage(message("n", "stays", "", "other")))
	must(t, s.Delete("c"))
	if all, _ := s.Conversations(); len(all) != 1 {
		t.Errorf("%d conversations after deleting", len(all))
	}
	if _, err := s.Conversation("c"); !errors.Is(err, ErrGone) {
		t.Errorf("error %v", err)
	}
	if hits, _ := s.Search("secretword", 9); len(hits) != 0 {
		t.Errorf("found %v", hits)
	}
	must(t, s.Restore("c"))
	if hits, _ := s.Search("secretword", 9); len(hits) != 1 {
		t.Errorf("found %v", hits)
	}
	if err := s.Delete("nothing"); !errors.Is(err, ErrGone) {
		t.Errorf("error %v", err)
	}
	must(t, s.Delete("c"))
	must(t, s.Close())
	s = openAt(t, path)
	if err := s.Restore("c"); !errors.Is(err, ErrGone) {
		t.Errorf("restored after a restart: %v", err)
	}
	if m, err := s.Messages("c"); err != nil || len(m) != 0 {
		t.Errorf("messages %v, %v", m, err)
	}
	if m, err := s.Messages("stays"); err != nil || len(m) != 1 {
		t.Errorf("messages %v, %v", m, err)
	}
	s.forgetting.Wait()
	must(t, s.Close())
	data, err := os.ReadFile(path)
	must(t, err)
	if strings.Contains(string(data), "secretword") {
		t.Error("the deleted text is still in the file")
	}
}

// The start must not take longer for each message that was ever written: what it waits for is found by indexes.
func TestTheStartLooksAtNoFinishedMessage(t *testing.T) {
	s, path := fresh(t)
	must(t, s.PutConversation(conversation("c", "title", 1)))
	must(t, s.PutMessage(message("m", "c", "", "whole")))
	var id, parent, unused int
	var detail string
	must(t, s.read.QueryRow(`EXPLAIN QUERY PLAN `+streamingMessages).Scan(&id, &parent, &unused, &detail))
	if !strings.Contains(detail, "messages_streaming") {
		t.Errorf("the answers that were being written are found by %q", detail)
	}
	// What never had a conversation is gone after the start, which does not wait for it; what comes after the start stays.
	must(t, s.PutMessage(message("lost", "never", "", "x")))
	must(t, s.Close())
	s = openAt(t, path)
	must(t, s.PutMessage(message("early", "later", "", "x")))
	s.forgetting.Wait()
	for conversation, want := range map[string]int{"c": 1, "never": 0, "later": 1} {
		if m, err := s.Messages(conversation); err != nil || len(m) != want {
			t.Errorf("%s has %d messages, %v", conversation, len(m), err)
		}
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

// titles lists where hits are, with their snippets.
func titles(hits []Hit) (out []string) {
	for _, h := range hits {
		out = append(out, h.Conversation+"/"+h.Message+": "+strings.NewReplacer(MarkBegin, "[", MarkEnd, "]").Replace(h.Snippet))
	}
	return out
}

func TestSearch(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c1", "Birds of Ecuador", 1)))
	must(t, s.PutMessage(message("m1", "c1", "", "Tell me about\nthe **hummingbird**, please: the HUMMINGBIRD.")))
	must(t, s.PutMessage(message("m2", "c1", "m1", "Crème brûlée is no bird. 今天天气怎么样？ Straße. C++ and x86_64.")))
	must(t, s.PutConversation(conversation("c2", "Hummingbirds", 2)))
	must(t, s.PutMessage(message("m3", "c2", "", strings.Repeat("filler ", 60)+"the needle, and "+strings.Repeat("more ", 60))))
	for query, want := range map[string][]string{
		"hum":                    {"c2/: [Hum]mingbirds", "c1/m1: Tell me about the **[hum]mingbird**, please: the [HUM]MINGBIRD."},
		"hummingbird please":     {"c1/m1: Tell me about the **[hummingbird]**, [please]: the [HUMMINGBIRD]."},
		"please hummingbird":     {"c1/m1: Tell me about the **[hummingbird]**, [please]: the [HUMMINGBIRD]."},
		"humming bird":           {},
		"ECUADOR":                {"c1/: Birds of [Ecuador]"},
		"creme BRULEE":           {"c1/m2: [Crème] [brûlée] is no bird. 今天天气怎么样？ Straße. C++ and x86_64."},
		"crème":                  {"c1/m2: [Crème] brûlée is no bird. 今天天气怎么样？ Straße. C++ and x86_64."},
		"天气":                     {"c1/m2: Crème brûlée is no bird. 今天[天气]怎么样？ Straße. C++ and x86_64."},
		"气天":                     {},
		"x86_64":                 {"c1/m2: …brûlée is no bird. 今天天气怎么样？ Straße. C++ and [x86]_[64]."},
		"need":                   {"c2/m3: …filler filler filler filler filler filler the [need]le, and more more more more more more more more more more more more more more more more more more more more mo…"},
		"eedle":                  {},
		"nothing-like-this":      {},
		"":                       {},
		"   ":                    {},
		"***":                    {},
		"\"":                     {},
		"hum*":                   {"c2/: [Hum]mingbirds", "c1/m1: Tell me about the **[hum]mingbird**, please: the [HUM]MINGBIRD."},
		"please AND hummingbird": {},
		"title:ecuador":          {},
		"NEAR(needle)":           {},
		"(needle":                {"c2/m3: …filler filler filler filler filler filler the [needle], and more more more more more more more more more more more more more more more more more more more more mo…"},
		"needle\" OR \"birds":    {},
		"-needle":                {"c2/m3: …filler filler filler filler filler filler the [needle], and more more more more more more more more more more more more more more more more more more more more mo…"},
	} {
		hits, err := s.Search(query, 20)
		if err != nil {
			t.Errorf("%q: %v", query, err)
			continue
		}
		if got := titles(hits); !slices.Equal(got, want) {
			t.Errorf("%q finds %q, expected %q", query, got, want)
		}
	}
}

func TestChangedTextIsFoundByItsNewWordsOnly(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c", "oldtitle", 1)))
	must(t, s.PutMessage(message("m", "c", "", "oldword")))
	must(t, s.PutConversation(conversation("c", "newtitle", 1)))
	must(t, s.PutMessage(message("m", "c", "", "newword")))
	for query, want := range map[string]int{"oldtitle": 0, "oldword": 0, "newtitle": 1, "newword": 1} {
		if hits, err := s.Search(query, 9); err != nil || len(hits) != want {
			t.Errorf("%s: %v, %v", query, hits, err)
		}
	}
}

func TestHitsAreLimitedAndOneConversationDoesNotFillTheList(t *testing.T) {
	s, _ := fresh(t)
	var conversations []Conversation
	var messages []Message
	for c := range 30 {
		id := fmt.Sprintf("c%d", c)
		conversations = append(conversations, conversation(id, "common", int64(c)))
		for m := range 10 {
			messages = append(messages, message(fmt.Sprintf("%s-m%d", id, m), id, "", "common text"))
		}
	}
	must(t, s.PutAll(conversations, messages))
	hits, err := s.Search("text", 20)
	must(t, err)
	per := map[string]int{}
	for _, h := range hits {
		per[h.Conversation]++
	}
	if len(hits) != 20 || len(per) != 7 || per["c29"] != 3 {
		t.Errorf("%d hits in %v", len(hits), per)
	}
	if hits, _ := s.Search("common", 20); len(hits) != 20 || hits[0].Conversation != "c29" || hits[0].Message != "" {
		t.Errorf("titles first, latest first: %v", titles(hits[:3]))
	}
}

func FuzzSearch(f *testing.F) {
	s, _ := fresh(f)
	must(f, s.PutConversation(conversation("c", "Title of 天气", 1)))
	must(f, s.PutMessage(message("m", "c", "", "the text, with “quotes” and 天气 and e\u0301")))
	for _, query := range []string{`"`, `a" OR "b`, "*", "^a", "col:x", "NEAR(a b)", "天", "a AND NOT b", "\x00", "\xff", "{a b}", "é", "e\u0301", "ß", "\u0e01\u0e34", "½", "²", "\U0001F600"} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		if _, err := s.Search(query, 5); err != nil {
			t.Fatalf("%q: %v", query, err)
		}
		snippet(query, terms(query))
	})
}

// What a snippet marks is what the index found: otherwise a hit would show no match.
func TestEverySnippetShowsItsMatch(t *testing.T) {
	const seed = 20260801
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c", "", 1)))
	words := []string{"alpha", "Beta", "GAMMA", "naïve", "e\u0301tude", "ÅNGSTRÖM", "x86", "42", "天气", "カタカナ", "Привет", "über-alles", "don't", "snake_case", "ﬁne", "½"}
	for i := range 200 {
		var text []string
		for range 1 + random.IntN(40) {
			text = append(text, words[random.IntN(len(words))])
		}
		must(t, s.PutMessage(message(fmt.Sprint(i), "c", "", strings.Join(text, []string{" ", ", ", "\n", "—"}[random.IntN(4)]))))
	}
	for _, query := range append(words, "alph", "etu", "angstr", "天", "Прив", "beta gamma") {
		hits, err := s.Search(query, 50)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hits {
			if !strings.Contains(h.Snippet, MarkBegin) {
				t.Errorf("%q: nothing is marked in %q", query, h.Snippet)
			}
		}
		if len(hits) == 0 {
			t.Errorf("%q is not found", query)
		}
	}
}

func TestSearchUsesTheIndex(t *testing.T) {
	s, _ := fresh(t)
	rows, err := s.read.Query(`EXPLAIN QUERY PLAN SELECT m.text FROM message_words w CROSS JOIN messages m ON m.key = w.rowid CROSS JOIN conversations c ON c.id = m.conversation WHERE w.words MATCH 'x' ORDER BY w.rowid DESC`)
	must(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var a, b, c int
		var detail string
		must(t, rows.Scan(&a, &b, &c, &detail))
		plan = append(plan, detail)
	}
	text := strings.Join(plan, "; ")
	if strings.Contains(text, "SCAN m") || strings.Contains(text, "SCAN c") || strings.Contains(text, "TEMP B-TREE") || !strings.Contains(text, "VIRTUAL TABLE INDEX") {
		t.Errorf("the plan reads too much: %s", text)
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
func (c coded) Code() int     { return int(c) }

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

func TestAFolderThatCannotBeMadeIsASentence(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o600))
	for _, path := range []string{filepath.Join(file, "conversations.db"), t.TempDir()} { // below a file; a folder itself
		if _, _, err := Open(path); err == nil || !strings.Contains(err.Error(), "check that you may write to this folder") {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// fill makes a file with enough in it to be damaged in many places, and closes it.
func fill(t *testing.T, path string) {
	t.Helper()
	s := openAt(t, path)
	var messages []Message
	for i := range 300 {
		messages = append(messages, message(fmt.Sprint("m", i), "c", "", strings.Repeat(fmt.Sprint("word", i, " "), 100)))
	}
	must(t, s.PutAll([]Conversation{conversation("c", "title", 1)}, messages))
	must(t, s.Close())
}

func TestADamagedFileIsSetAsideAndAFreshOneBegun(t *testing.T) {
	for name, damage := range map[string]func(data []byte) []byte{
		"text":      func([]byte) []byte { return []byte(strings.Repeat("this is no database. ", 100)) },
		"header":    func(d []byte) []byte { copy(d, "garbage"); return d },
		"root page": func(d []byte) []byte { clear(d[100:4096]); return d },
		"truncated": func(d []byte) []byte { return d[:5000] },
	} {
		path := filepath.Join(t.TempDir(), "conversations.db")
		fill(t, path)
		data, err := os.ReadFile(path)
		must(t, err)
		data = damage(data)
		must(t, os.WriteFile(path, data, 0o600))
		s, notices, err := Open(path)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(notices) != 1 || !strings.Contains(notices[0], "conversations.db.damaged-20") {
			t.Errorf("%s: notices %q", name, notices)
		}
		if all, err := s.Conversations(); err != nil || len(all) != 0 {
			t.Errorf("%s: %v, %v", name, all, err)
		}
		must(t, s.PutConversation(conversation("new", "t", 1)))
		must(t, s.Close())
		kept, _ := filepath.Glob(path + ".damaged-*")
		if len(kept) != 1 {
			t.Errorf("%s: kept %v", name, kept)
		} else if old, _ := os.ReadFile(kept[0]); string(old) != string(data) {
			t.Errorf("%s: the damaged file was changed", name)
		}
	}
}

func TestDamageInTheMiddleIsFoundAfterAnUncleanEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conversations.db")
	fill(t, path)
	data, err := os.ReadFile(path)
	must(t, err)
	for at := len(data) / 2; at < len(data)/2+3*4096; at++ {
		data[at] = 0x5A
	}
	must(t, os.WriteFile(path, data, 0o600))
	must(t, os.WriteFile(path+"-wal", make([]byte, 32), 0o600)) // as a crash leaves it
	_, notices, err := Open(path)
	if err != nil || len(notices) != 1 {
		t.Errorf("notices %q, %v", notices, err)
	}
}

func TestTwoDamagedFilesInASecondAreBothKept(t *testing.T) {
	path := filepath.Join(t.TempDir(), "conversations.db")
	for range 3 {
		must(t, os.WriteFile(path, []byte(strings.Repeat("no database ", 100)), 0o600))
		s, notices, err := Open(path)
		if err != nil || len(notices) != 1 {
			t.Fatalf("%q, %v", notices, err)
		}
		must(t, s.Close())
	}
	if kept, _ := filepath.Glob(path + ".damaged-*"); len(kept) != 3 {
		t.Errorf("kept %v", kept)
	}
}

func TestFilesOfOthersAreLeftAlone(t *testing.T) {
	for statement, want := range map[string]string{
		`PRAGMA user_version = 99; PRAGMA application_id = 1129071186`: "written by a newer Colibri (version 99",
		`PRAGMA application_id = 77; CREATE TABLE t (x)`:               "the database of another program",
		`PRAGMA user_version = 1; CREATE TABLE conversations (x)`:      "the database of another program",
	} {
		path := filepath.Join(t.TempDir(), "other.db")
		db, err := sql.Open("sqlite", path)
		must(t, err)
		_, err = db.Exec(statement)
		must(t, err)
		must(t, db.Close())
		before, _ := os.ReadFile(path)
		if _, _, err := Open(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", statement, err)
		}
		if after, _ := os.ReadFile(path); len(after) != len(before) {
			t.Errorf("%s: the file was changed", statement)
		}
	}
}

// schemaOf lists what the file consists of.
func schemaOf(t *testing.T, db *sql.DB) []string {
	t.Helper()
	rows, err := db.Query(`SELECT type || ' ' || name || ' ' || coalesce(sql, '') FROM sqlite_master ORDER BY name`)
	must(t, err)
	defer rows.Close()
	var all []string
	for rows.Next() {
		var line string
		must(t, rows.Scan(&line))
		all = append(all, line)
	}
	return all
}

// testdata/frozen-N.sql makes a file as version N of the program wrote it; these files never change. A change of the schema
// without a new version makes this test fail, as does a migration that loses something.
func TestFilesOfEveryVersionOpen(t *testing.T) {
	current, _ := fresh(t)
	want := schemaOf(t, current.read)
	for v := 1; v <= version; v++ {
		text, err := os.ReadFile(filepath.Join("testdata", fmt.Sprintf("frozen-%d.sql", v)))
		must(t, err)
		path := filepath.Join(t.TempDir(), "old.db")
		db, err := sql.Open("sqlite", path)
		must(t, err)
		_, err = db.Exec(string(text))
		must(t, err)
		must(t, db.Close())
		s := openAt(t, path)
		if got := schemaOf(t, s.read); !slices.Equal(got, want) {
			t.Errorf("version %d: schema\n%s\nexpected\n%s", v, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		all, err := s.Conversations()
		must(t, err)
		if len(all) != 2 || all[0].ID != "c2" || all[1].Title != "Birds of Ecuador" || !all[1].Pinned || all[1].Head != "m3" || string(all[1].Sampling) != `{"temperature":0.5}` || all[1].Draft != "and th" {
			t.Errorf("version %d: conversations %+v", v, all)
		}
		messages, err := s.Messages("c1")
		must(t, err)
		if len(messages) != 3 || messages[2].State != Interrupted || messages[2].Thinking != "so far" || string(messages[1].Receipt) != `{"seed":7}` || messages[1].Parent != "m1" {
			t.Errorf("version %d: messages %+v", v, messages)
		}
		for query, hits := range map[string]int{"ecuador": 1, "hummingbird": 1, "half": 1, "天气": 1, "deleted": 0} {
			if found, err := s.Search(query, 9); err != nil || len(found) != hits {
				t.Errorf("version %d: %q finds %v, %v", v, query, found, err)
			}
		}
	}
}

func BenchmarkSearch(b *testing.B) {
	s, _ := fresh(b)
	random := rand.New(rand.NewPCG(1, 1))
	vocabulary := make([]string, 5000)
	for i := range vocabulary {
		for range 3 + random.IntN(7) {
			vocabulary[i] += string(rune('a' + random.IntN(26)))
		}
	}
	for c := range 2000 {
		var messages []Message
		id := fmt.Sprint("c", c)
		for m := range 6 {
			var text []string
			for range 250 {
				text = append(text, vocabulary[min(random.IntN(5000), random.IntN(5000))])
			}
			messages = append(messages, message(fmt.Sprint(id, "-", m), id, "", strings.Join(append(text, "common"), " ")))
		}
		must(b, s.PutAll([]Conversation{conversation(id, "Title "+fmt.Sprint(c), int64(c))}, messages))
	}
	for name, query := range map[string]string{"common": "common", "rare": vocabulary[4990], "prefix": "a", "two": vocabulary[10] + " " + vocabulary[20], "none": "qqqqqqqq", "commonAndRare": "common " + vocabulary[4980]} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Search(query, 50); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Two thousand conversations: everything is listed, found and opened. BenchmarkTwoThousand says how long it takes.
func TestTwoThousandConversations(t *testing.T) {
	s, path := fresh(t)
	var conversations []Conversation
	var messages []Message
	for c := range 2000 {
		id := fmt.Sprint("c", c)
		conversations = append(conversations, conversation(id, fmt.Sprintf("Chat %d about birds", c), int64(c)))
		for m := range 4 {
			messages = append(messages, message(fmt.Sprint(id, "-", m), id, "", fmt.Sprintf("Message %d of chat number%d: hummingbirds hover", m, c)))
		}
	}
	must(t, s.PutAll(conversations, messages))
	must(t, s.Close())
	s = openAt(t, path)
	all, err := s.Conversations()
	must(t, err)
	if len(all) != 2000 || all[0].ID != "c1999" || all[1999].ID != "c0" {
		t.Fatalf("%d conversations", len(all))
	}
	for query, want := range map[string]int{"hummingbirds": 50, "birds": 50, "number1234": 3, "hover number77": 33, "number77 hover": 3, "nowhere": 0} {
		hits, err := s.Search(query, 50)
		must(t, err)
		if len(hits) != want {
			t.Errorf("%q finds %d, want %d", query, len(hits), want)
		}
	}
}

// BenchmarkTwoThousand is the start with 2,000 conversations of six messages of 1.5 KB, and the list that the window shows first.
func BenchmarkTwoThousand(b *testing.B) {
	s, path := fresh(b)
	for c := range 2000 {
		var messages []Message
		id := fmt.Sprint("c", c)
		for m := range 6 {
			messages = append(messages, message(fmt.Sprint(id, "-", m), id, "", strings.Repeat(fmt.Sprintf("word%d and more words ", (c*7+m)%5000), 70)))
		}
		must(b, s.PutAll([]Conversation{conversation(id, "Title "+fmt.Sprint(c), int64(c))}, messages))
	}
	must(b, s.Close())
	b.Run("open and list", func(b *testing.B) {
		for b.Loop() {
			s, _, err := Open(path)
			must(b, err)
			if all, err := s.Conversations(); err != nil || len(all) != 2000 {
				b.Fatal(len(all), err)
			}
			b.StopTimer() // closing waits for what the start left to do later
			must(b, s.Close())
			b.StartTimer()
		}
	})
}
