package store

import (
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
