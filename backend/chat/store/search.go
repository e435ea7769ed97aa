package store

import "errors"

// Hit is a place where something was found.
type Hit struct {
	Conversation string
	Message      string // "" when the title matched
	Title        string
	Snippet      string // one line; see MarkBegin
	Updated      int64
}

// hitsPerConversation keeps one long conversation from filling the list.
const hitsPerConversation = 3

// Search finds conversations by the words of titles and messages: all words must occur, the last may be the beginning of
// one. Titles come first, then messages, the latest first. Any text is a valid query; one without a word finds nothing.
func (s *Store) Search(query string, limit int) ([]Hit, error) {
	wanted := terms(query)
	if len(wanted) == 0 || limit <= 0 {
		return []Hit{}, nil
	}
	s.settle()
	hits, err := list(s, func(row interface{ Scan(...any) error }) (h Hit, err error) {
		err = row.Scan(&h.Conversation, &h.Title, &h.Updated)
		h.Snippet = snippet(h.Title, wanted)
		return h, err
	}, `SELECT c.id, c.title, c.updated FROM title_words w JOIN conversations c ON c.key = w.rowid
		WHERE w.words MATCH ? AND c.deleted = 0 ORDER BY c.updated DESC LIMIT ?`, match(wanted), limit)
	if err != nil {
		return nil, err
	}
	// Rows come in the order of the index, newest first, and reading stops when there are enough: nothing is sorted or ranked.
	rows, err := s.read.Query(`SELECT c.id, c.title, c.updated, m.id, m.text FROM message_words w CROSS JOIN messages m ON m.key = w.rowid
		CROSS JOIN conversations c ON c.id = m.conversation WHERE w.words MATCH ? AND c.deleted = 0 ORDER BY w.rowid DESC`, match(wanted))
	if err != nil {
		return nil, s.explain(err)
	}
	defer rows.Close()
	perConversation := map[string]int{}
	for len(hits) < limit && rows.Next() {
		var h Hit
		var text string
		if err := rows.Scan(&h.Conversation, &h.Title, &h.Updated, &h.Message, &text); err != nil {
			return nil, s.explain(err)
		}
		if perConversation[h.Conversation]++; perConversation[h.Conversation] > hitsPerConversation {
			continue
		}
		h.Snippet = snippet(text, wanted)
		hits = append(hits, h)
	}
	return hits, errors.Join(s.explain(rows.Err()), rows.Close())
}
