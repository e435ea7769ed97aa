package store

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	_ "modernc.org/sqlite" // the driver "sqlite"
)

//go:embed schema/*.sql
var schemas embed.FS

// version is the newest schema, kept in the file as user_version. schema/N.sql leads from version N−1 to N.
const version = 2

// applicationID marks the file as ours ("CLBR").
const applicationID = 0x434C4252

// Open opens the file, making or migrating it. What was streaming when the program last ended becomes interrupted, and what
// was deleted is removed for good. A damaged file is renamed, never overwritten, and a fresh one begun; the notices are
// sentences about this for the user. The error is for files that are sound but cannot be used.
func Open(path string) (s *Store, notices []string, err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, nil, fmt.Errorf("conversations cannot be written to %s; check that you may write to this folder: %w", filepath.Dir(path), err)
	}
	s, err = open(path)
	if !isDamage(err) {
		return s, nil, err
	}
	aside, asideErr := setAside(path)
	if asideErr != nil {
		return nil, nil, fmt.Errorf("%s is damaged and cannot be renamed: %w", path, asideErr)
	}
	s, err = open(path)
	return s, []string{fmt.Sprintf("The file with the conversations was damaged. It was kept as %s, and a fresh one was begun.", filepath.Base(aside))}, err
}

func isDamage(err error) bool {
	var coded interface{ Code() int }
	if errors.As(err, &coded) {
		code := coded.Code() & 0xFF
		return code == codeCorrupt || code == codeNotADatabase
	}
	return errors.Is(err, errDamaged)
}

var errDamaged = errors.New("its check failed")

// setAside renames the file and SQLite's files beside it to a name with the date.
func setAside(path string) (aside string, err error) {
	stamp := ".damaged-" + time.Now().Format("20060102-150405")
	aside = path + stamp
	for n := 2; ; n++ { // two within a second
		if _, err := os.Lstat(aside); errors.Is(err, fs.ErrNotExist) {
			break
		}
		aside = fmt.Sprintf("%s%s-%d", path, stamp, n)
	}
	for _, suffix := range []string{"-wal", "-shm", ""} {
		if err := os.Rename(path+suffix, aside+suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", err
		}
	}
	return aside, nil
}

// database opens connections with the given pragmas.
func database(path string, connections int, pragmas ...string) (*sql.DB, error) {
	absolute, err := filepath.Abs(path)
	if err != nil {
		return nil, err
	}
	query := url.Values{"_pragma": append([]string{"busy_timeout(5000)"}, pragmas...), "_txlock": {"immediate"}}
	address := url.URL{Scheme: "file", Path: filepath.ToSlash(absolute), RawQuery: query.Encode()}
	db, err := sql.Open("sqlite", address.String())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(connections)
	db.SetMaxIdleConns(connections)
	return db, nil
}

func open(path string) (*Store, error) {
	// A journal beside the file means that the program did not end in peace; after that the file is checked whole, which
	// takes about a second for 200 MB and would be too slow for every start.
	journal, err := os.Stat(path + "-wal")
	check := err == nil && journal.Size() > 0

	s := &Store{path: path, jobs: make(chan job, 256), done: make(chan struct{})}
	// FULL: a commit is on the disk when it returns, power cuts included. secure_delete: what is deleted is overwritten.
	s.write, err = database(path, 1, "journal_mode(wal)", "synchronous(full)", "secure_delete(on)", "journal_size_limit(16777216)")
	if err != nil {
		return nil, s.explain(err)
	}
	if err := s.prepare(check); err != nil {
		return nil, errors.Join(s.explain(err), s.write.Close())
	}
	s.read, err = database(path, 4, "query_only(on)")
	if err != nil {
		return nil, errors.Join(s.explain(err), s.write.Close())
	}
	go s.writer()
	s.forgetting.Go(s.forget)
	return s, nil
}

// prepare brings the file to what this program expects.
func (s *Store) prepare(check bool) error {
	ctx := context.Background()
	connection, err := s.write.Conn(ctx)
	if err != nil {
		return err
	}
	defer connection.Close()
	var found, application int
	if err := connection.QueryRowContext(ctx, `PRAGMA user_version`).Scan(&found); err != nil {
		return err
	}
	if err := connection.QueryRowContext(ctx, `PRAGMA application_id`).Scan(&application); err != nil {
		return err
	}
	if found > version {
		return fmt.Errorf("%s was written by a newer Colibri (version %d of its form, this one knows %d); update Colibri to open it", s.path, found, version)
	}
	if application != applicationID && found != 0 || application != 0 && found == 0 {
		return fmt.Errorf("%s is the database of another program; move it away", s.path)
	}
	if check && found > 0 {
		var result string
		if err := connection.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&result); err != nil {
			return err
		}
		if result != "ok" {
			return fmt.Errorf("%w: %s", errDamaged, result)
		}
	}
	tx, err := connection.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // after Commit it does nothing
	for v := found + 1; v <= version; v++ {
		text, err := schemas.ReadFile(fmt.Sprintf("schema/%d.sql", v))
		if err != nil {
			return err
		}
		if _, err := tx.Exec(string(text)); err != nil {
			return fmt.Errorf("bringing %s to version %d: %w", s.path, v, err)
		}
	}
	if found < version {
		if _, err := tx.Exec(fmt.Sprintf(`PRAGMA user_version = %d; PRAGMA application_id = %d`, version, applicationID)); err != nil {
			return err
		}
	}
	if s.purged, err = purge(tx); err != nil {
		return err
	}
	if err := interrupt(tx); err != nil {
		return err
	}
	if err := tx.QueryRow(`SELECT coalesce(max(key), 0) FROM messages`).Scan(&s.lastAtOpen); err != nil {
		return err
	}
	return tx.Commit()
}

// purge removes deleted conversations.
func purge(tx *sql.Tx) (removed bool, err error) {
	return removeBy(tx,
		`DELETE FROM message_words WHERE rowid IN (SELECT key FROM messages WHERE conversation IN (SELECT id FROM conversations WHERE deleted <> 0))`,
		`DELETE FROM messages WHERE conversation IN (SELECT id FROM conversations WHERE deleted <> 0)`,
		`DELETE FROM title_words WHERE rowid IN (SELECT key FROM conversations WHERE deleted <> 0)`,
		`DELETE FROM conversations WHERE deleted <> 0`,
	)
}

// removeBy runs statements, and says whether any of them changed a row.
func removeBy(tx *sql.Tx, statements ...string) (removed bool, err error) {
	for _, statement := range statements {
		result, err := tx.Exec(statement)
		if err != nil {
			return removed, err
		}
		n, err := result.RowsAffected()
		if err != nil {
			return removed, err
		}
		removed = removed || n > 0
	}
	return removed, nil
}

// mergePages is how much of an index one step of forget rewrites: some milliseconds of work.
const mergePages = 200

// forget removes what nobody waits for: messages whose conversation never came, which takes a look at every message there was when the file was
// opened, and the words of all that was purged. Deleting only marks those; they go when the index is rewritten, which is done in
// steps between which others can write.
func (s *Store) forget() {
	err := s.do(func(tx *sql.Tx) error {
		orphans := fmt.Sprintf(`FROM messages WHERE key <= %d AND conversation NOT IN (SELECT id FROM conversations)`, s.lastAtOpen)
		removed, err := removeBy(tx, `DELETE FROM message_words WHERE rowid IN (SELECT key `+orphans+`)`, `DELETE `+orphans)
		s.purged = s.purged || removed
		return err
	})
	if err != nil || !s.purged {
		return // closed, or the disk fails, which others will report
	}
	for _, table := range []string{"title_words", "message_words"} {
		// A negative number of pages begins to merge everything, positive ones go on; less than two changed rows mean that it is done.
		for pages, done := -mergePages, false; !done; pages = mergePages {
			err := s.do(func(tx *sql.Tx) error {
				var before, after int
				if err := tx.QueryRow(`SELECT total_changes()`).Scan(&before); err != nil {
					return err
				}
				if _, err := tx.Exec(fmt.Sprintf(`INSERT INTO %s (%s, rank) VALUES ('merge', %d)`, table, table, pages)); err != nil {
					return err
				}
				err := tx.QueryRow(`SELECT total_changes()`).Scan(&after)
				done = after-before < 2
				return err
			})
			if err != nil {
				return // closed, or the disk fails, which others will report
			}
		}
	}
}

// streamingMessages names the state as a constant, so that the index of those few is used: states lie behind the texts, and a look at each
// would read the whole file.
const streamingMessages = `SELECT key, text FROM messages WHERE state = '` + Streaming + `'`

// interrupt ends the answers that were being written.
func interrupt(tx *sql.Tx) error {
	rows, err := tx.Query(streamingMessages)
	if err != nil {
		return err
	}
	defer rows.Close()
	texts := map[int64]string{}
	for rows.Next() {
		var key int64
		var text string
		if err := rows.Scan(&key, &text); err != nil {
			return err
		}
		texts[key] = text
	}
	if err := rows.Err(); err != nil {
		return err
	}
	for key, text := range texts {
		if _, err := tx.Exec(`UPDATE messages SET state = ? WHERE key = ?`, Interrupted, key); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT OR REPLACE INTO message_words (rowid, words) VALUES (?, ?)`, key, indexed(text)); err != nil {
			return err
		}
	}
	return nil
}
