// Package store keeps conversations in one SQLite file: messages as a tree, drafts, receipts, and an index of every word.
//
// What is put is on the disk when the call returns; what is appended to an answer that is being written is there within half
// a second, so that a killed program loses no more. All writing is done by one goroutine; reading sees everything written
// before. The package knows nothing of models, windows or what receipts and sampling values mean.
package store

import (
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"
)

// Conversation is what is kept of one beside its messages. Times are milliseconds since 1970.
type Conversation struct {
	ID           string
	Title        string
	Pinned       bool
	Created      int64
	Updated      int64
	Head         string // the last message of the branch that is shown, "" when empty
	Model        string
	SystemPrompt string
	Sampling     json.RawMessage // nil: the defaults
	Draft        string
}

// Message is one turn. Messages form a tree by Parent: an edited question and a second answer are siblings.
type Message struct {
	ID           string
	Conversation string
	Parent       string // "" for the first
	Role         string
	Text         string
	Thinking     string
	State        string // Streaming, Interrupted, or what the caller calls the ends of answers
	Error        string
	Receipt      json.RawMessage
	Created      int64
}

// The states that the store itself knows. What was streaming when the program ended is interrupted when the file is opened.
const (
	Streaming   = "streaming"
	Interrupted = "interrupted"
)

// ErrGone says that a conversation is not there (any more).
var ErrGone = errors.New("this conversation is gone")

// appendInterval is how long appended text waits to be written together. Callers may add as much of their own and still be
// within a second.
const appendInterval = 400 * time.Millisecond

// Store is an open file, safe for use by any number of goroutines.
type Store struct {
	path    string
	write   *sql.DB // one connection, used by the writer alone
	read    *sql.DB
	jobs    chan job
	done    chan struct{}
	failed  sync.Mutex // guards lastErr
	lastErr error      // why appended text is still not on the disk

	lastAtOpen int64 // key of the newest message when the file was opened
	purged     bool  // opening removed something; forget's alone once that runs
	forgetting sync.WaitGroup

	closing sync.RWMutex // held for reading while a job is handed over
	closed  bool
}

// job is work for the writer. With a reply it is written at once, after everything before it; without, within appendInterval.
type job struct {
	run   func(tx *sql.Tx) error
	reply chan error
}

// writer runs jobs in their order.
func (s *Store) writer() {
	defer close(s.done)
	var appended []job // not written yet
	timer := time.NewTimer(appendInterval)
	timer.Stop()
	for {
		select {
		case j, ok := <-s.jobs:
			switch {
			case !ok:
				_ = s.flush(&appended) // Close returns lastErr
				return
			case j.reply == nil:
				if len(appended) == 0 {
					timer.Reset(appendInterval)
				}
				appended = append(appended, j)
				continue
			}
			// What cannot be written must not be overtaken: appending later to a text that was replaced would double it.
			err := s.flush(&appended)
			if err == nil {
				err = s.transact(j.run)
			}
			j.reply <- err
		case <-timer.C:
			_ = s.flush(&appended)
		}
		timer.Stop()
		if len(appended) > 0 { // tried again: the disk may have space by then
			timer.Reset(appendInterval)
		}
	}
}

// flush writes appended text in one transaction; what fails stays in jobs.
func (s *Store) flush(jobs *[]job) error {
	if len(*jobs) == 0 {
		return nil
	}
	err := s.transact(func(tx *sql.Tx) error {
		for _, j := range *jobs {
			if err := j.run(tx); err != nil {
				return err
			}
		}
		return nil
	})
	if err == nil {
		*jobs = (*jobs)[:0]
	}
	s.failed.Lock()
	defer s.failed.Unlock()
	s.lastErr = err
	return err
}

// transact runs changes that are all kept or none.
func (s *Store) transact(run func(tx *sql.Tx) error) error {
	tx, err := s.write.Begin()
	if err != nil {
		return s.explain(err)
	}
	if err := run(tx); err != nil {
		return s.explain(errors.Join(err, ignoreDone(tx.Rollback())))
	}
	return s.explain(tx.Commit())
}

// ignoreDone drops what database/sql says when SQLite has rolled back by itself.
func ignoreDone(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return nil
	}
	return err
}

var errClosed = errors.New("the conversations are closed")

func (s *Store) hand(j job) error {
	s.closing.RLock()
	defer s.closing.RUnlock()
	if s.closed {
		return errClosed
	}
	s.jobs <- j
	return nil
}

// do has the writer run a job and waits until it is on the disk.
func (s *Store) do(run func(tx *sql.Tx) error) error {
	reply := make(chan error, 1)
	if err := s.hand(job{run, reply}); err != nil {
		return err
	}
	return <-reply
}

// settle waits until everything appended before is written, so that reading sees it. A failure is not the reader's.
func (s *Store) settle() { _ = s.do(func(*sql.Tx) error { return nil }) }

// PutConversation inserts or replaces a conversation.
func (s *Store) PutConversation(c Conversation) error {
	return s.do(func(tx *sql.Tx) error { return putConversation(tx, c) })
}

// PutMessage inserts or replaces a message.
func (s *Store) PutMessage(m Message) error {
	return s.do(func(tx *sql.Tx) error { return putMessage(tx, m) })
}

// PutAll inserts or replaces conversations with their messages: all of them or none.
func (s *Store) PutAll(conversations []Conversation, messages []Message) error {
	return s.do(func(tx *sql.Tx) error {
		for _, c := range conversations {
			if err := putConversation(tx, c); err != nil {
				return err
			}
		}
		for _, m := range messages {
			if err := putMessage(tx, m); err != nil {
				return err
			}
		}
		return nil
	})
}

func putConversation(tx *sql.Tx, c Conversation) error {
	var key int64
	var title string
	err := tx.QueryRow(`SELECT key, title FROM conversations WHERE id = ?`, c.ID).Scan(&key, &title)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		result, err := tx.Exec(`INSERT INTO conversations (id, title, pinned, created, updated, head, model, system_prompt, sampling, draft) VALUES (?,?,?,?,?,?,?,?,?,?)`,
			c.ID, c.Title, c.Pinned, c.Created, c.Updated, c.Head, c.Model, c.SystemPrompt, nullable(c.Sampling), c.Draft)
		if err != nil {
			return err
		}
		if key, err = result.LastInsertId(); err != nil {
			return err
		}
		title = ""
	case err != nil:
		return err
	default:
		if _, err := tx.Exec(`UPDATE conversations SET title=?, pinned=?, created=?, updated=?, head=?, model=?, system_prompt=?, sampling=?, draft=? WHERE key=?`,
			c.Title, c.Pinned, c.Created, c.Updated, c.Head, c.Model, c.SystemPrompt, nullable(c.Sampling), c.Draft, key); err != nil {
			return err
		}
	}
	if title == c.Title {
		return nil
	}
	_, err = tx.Exec(`INSERT OR REPLACE INTO title_words (rowid, words) VALUES (?, ?)`, key, indexed(c.Title))
	return err
}

func putMessage(tx *sql.Tx, m Message) error {
	var key int64
	var text, state string
	err := tx.QueryRow(`SELECT key, text, state FROM messages WHERE id = ?`, m.ID).Scan(&key, &text, &state)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		result, err := tx.Exec(`INSERT INTO messages (id, conversation, parent, role, text, thinking, state, error, receipt, created) VALUES (?,?,?,?,?,?,?,?,?,?)`,
			m.ID, m.Conversation, m.Parent, m.Role, m.Text, m.Thinking, m.State, m.Error, nullable(m.Receipt), m.Created)
		if err != nil {
			return err
		}
		if key, err = result.LastInsertId(); err != nil {
			return err
		}
		state = Streaming // not in the index
	case err != nil:
		return err
	default:
		if _, err := tx.Exec(`UPDATE messages SET conversation=?, parent=?, role=?, text=?, thinking=?, state=?, error=?, receipt=?, created=? WHERE key=?`,
			m.Conversation, m.Parent, m.Role, m.Text, m.Thinking, m.State, m.Error, nullable(m.Receipt), m.Created, key); err != nil {
			return err
		}
	}
	switch {
	case m.State == Streaming && state != Streaming: // an answer is taken up again
		_, err = tx.Exec(`DELETE FROM message_words WHERE rowid = ?`, key)
	case m.State != Streaming && (state == Streaming || text != m.Text):
		_, err = tx.Exec(`INSERT OR REPLACE INTO message_words (rowid, words) VALUES (?, ?)`, key, indexed(m.Text))
	default:
		return nil
	}
	return err
}

func nullable(raw json.RawMessage) any {
	if raw == nil {
		return nil
	}
	return string(raw)
}

// AppendText adds to an answer that is being written. It returns at once; the error is about text appended before, which
// stays in memory and is tried again until it is written or the store is closed.
func (s *Store) AppendText(message, text, thinking string) error {
	err := s.hand(job{run: func(tx *sql.Tx) error {
		_, err := tx.Exec(`UPDATE messages SET text = text || ?, thinking = thinking || ? WHERE id = ?`, text, thinking, message)
		return err
	}})
	if err != nil {
		return err
	}
	s.failed.Lock()
	defer s.failed.Unlock()
	return s.lastErr
}

// Delete takes a conversation out of sight. Restore brings it back until the file is opened again.
func (s *Store) Delete(conversation string) error {
	return s.mark(conversation, time.Now().UnixMilli())
}

// Restore undoes Delete.
func (s *Store) Restore(conversation string) error { return s.mark(conversation, 0) }

func (s *Store) mark(conversation string, deleted int64) error {
	return s.do(func(tx *sql.Tx) error {
		result, err := tx.Exec(`UPDATE conversations SET deleted = ? WHERE id = ?`, deleted, conversation)
		if err != nil {
			return err
		}
		if n, err := result.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, ErrGone)
		}
		return nil
	})
}

const conversationColumns = `id, title, pinned, created, updated, head, model, system_prompt, sampling, draft`

func scanConversation(row interface{ Scan(...any) error }) (c Conversation, err error) {
	var sampling sql.NullString
	err = row.Scan(&c.ID, &c.Title, &c.Pinned, &c.Created, &c.Updated, &c.Head, &c.Model, &c.SystemPrompt, &sampling, &c.Draft)
	if sampling.Valid {
		c.Sampling = json.RawMessage(sampling.String)
	}
	return c, err
}

// Conversations lists all that are not deleted, the latest first.
func (s *Store) Conversations() ([]Conversation, error) {
	return list(s, scanConversation, `SELECT `+conversationColumns+` FROM conversations WHERE deleted = 0 ORDER BY updated DESC, key DESC`)
}

// Conversation reads one; ErrGone if it is not there or deleted.
func (s *Store) Conversation(id string) (Conversation, error) {
	c, err := scanConversation(s.read.QueryRow(`SELECT `+conversationColumns+` FROM conversations WHERE id = ? AND deleted = 0`, id))
	if errors.Is(err, sql.ErrNoRows) {
		return c, ErrGone
	}
	return c, s.explain(err)
}

// Messages lists a conversation's whole tree in the order in which it grew.
func (s *Store) Messages(conversation string) ([]Message, error) {
	s.settle()
	return list(s, func(row interface{ Scan(...any) error }) (m Message, err error) {
		var receipt sql.NullString
		err = row.Scan(&m.ID, &m.Conversation, &m.Parent, &m.Role, &m.Text, &m.Thinking, &m.State, &m.Error, &receipt, &m.Created)
		if receipt.Valid {
			m.Receipt = json.RawMessage(receipt.String)
		}
		return m, err
	}, `SELECT id, conversation, parent, role, text, thinking, state, error, receipt, created FROM messages WHERE conversation = ? ORDER BY key`, conversation)
}

// list reads all rows of a query.
func list[T any](s *Store, scan func(row interface{ Scan(...any) error }) (T, error), query string, args ...any) ([]T, error) {
	rows, err := s.read.Query(query, args...)
	if err != nil {
		return nil, s.explain(err)
	}
	defer rows.Close()
	all := []T{}
	for rows.Next() {
		v, err := scan(rows)
		if err != nil {
			return nil, s.explain(err)
		}
		all = append(all, v)
	}
	return all, s.explain(rows.Err())
}

// Close writes what is left and closes the file.
func (s *Store) Close() error {
	s.closing.Lock()
	if s.closed {
		s.closing.Unlock()
		return nil
	}
	s.closed = true
	close(s.jobs)
	s.closing.Unlock()
	<-s.done
	s.forgetting.Wait()
	s.failed.Lock()
	err := s.lastErr
	s.failed.Unlock()
	return errors.Join(err, s.read.Close(), s.write.Close())
}

// explain turns what SQLite says into a sentence for people.
func (s *Store) explain(err error) error {
	var coded interface{ Code() int }
	if err == nil || !errors.As(err, &coded) {
		return err
	}
	folder := filepath.Dir(s.path)
	switch coded.Code() & 0xFF { // the high bits say more precisely where
	case codeFull:
		return fmt.Errorf("the disk with %s is full; free some space and try again (%w)", folder, err)
	case codeReadOnly, codePermission, codeCannotOpen:
		return fmt.Errorf("conversations cannot be written to %s; check that you may write to this folder (%w)", folder, err)
	case codeBusy, codeLocked:
		return fmt.Errorf("another program is using %s; close it and try again (%w)", s.path, err)
	case codeCorrupt, codeNotADatabase:
		return fmt.Errorf("%s is damaged; restart Colibri, which sets it aside and begins a fresh one (%w)", s.path, err)
	case codeIO:
		return fmt.Errorf("the disk with %s reports an error; check that it is connected and sound (%w)", folder, err)
	}
	return fmt.Errorf("%s: %w", s.path, err)
}

// SQLite's primary result codes.
const (
	codePermission   = 3
	codeBusy         = 5
	codeLocked       = 6
	codeReadOnly     = 8
	codeIO           = 10
	codeCorrupt      = 11
	codeFull         = 13
	codeCannotOpen   = 14
	codeNotADatabase = 26
)
