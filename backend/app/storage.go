package app

import (
	"encoding/json"
	"fmt"

	"colibri/backend/chat/store"
)

// OpenStore opens the database, or a fresh one with a sentence for the user if the old one is damaged.
func OpenStore(path string) (Store, []string, error) {
	s, notices, err := store.Open(path)
	if err != nil {
		return nil, nil, err
	}
	return database{s}, notices, nil
}

// database gives the stored receipts and sampling values, which are JSON to the store, their types.
type database struct{ *store.Store }

func (d database) Conversations() ([]Conversation, error) {
	rows, err := d.Store.Conversations()
	if err != nil {
		return nil, err
	}
	out := make([]Conversation, len(rows))
	for i := range rows {
		if out[i], err = conversationOf(rows[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (d database) Conversation(id string) (Conversation, error) {
	row, err := d.Store.Conversation(id)
	if err != nil {
		return Conversation{}, err
	}
	return conversationOf(row)
}

func (d database) Messages(conversation string) ([]Message, error) {
	rows, err := d.Store.Messages(conversation)
	if err != nil {
		return nil, err
	}
	out := make([]Message, len(rows))
	for i, row := range rows {
		out[i] = Message{
			ID: row.ID, Conversation: row.Conversation, Parent: row.Parent, Role: row.Role, Text: row.Text, Thinking: row.Thinking,
			State: row.State, Error: row.Error, Created: row.Created,
		}
		if err := optional(row.Receipt, &out[i].Receipt); err != nil {
			return nil, fmt.Errorf("the receipt of message %s is damaged: %w", row.ID, err)
		}
	}
	return out, nil
}

func (d database) PutConversation(c Conversation) error {
	row, err := conversationRow(c)
	if err != nil {
		return err
	}
	return d.Store.PutConversation(row)
}

func (d database) PutMessage(m Message) error {
	row, err := messageRow(m)
	if err != nil {
		return err
	}
	return d.Store.PutMessage(row)
}

func (d database) PutAll(conversations []Conversation, messages []Message) error {
	conversationRows, messageRows := make([]store.Conversation, len(conversations)), make([]store.Message, len(messages))
	var err error
	for i, c := range conversations {
		if conversationRows[i], err = conversationRow(c); err != nil {
			return err
		}
	}
	for i, m := range messages {
		if messageRows[i], err = messageRow(m); err != nil {
			return err
		}
	}
	return d.Store.PutAll(conversationRows, messageRows)
}

func (d database) Search(query string, limit int) ([]Hit, error) {
	rows, err := d.Store.Search(query, limit)
	if err != nil {
		return nil, err
	}
	hits := make([]Hit, len(rows))
	for i, row := range rows {
		hits[i] = Hit{Conversation: row.Conversation, Message: row.Message, Title: row.Title, Snippet: row.Snippet, Updated: row.Updated}
	}
	return hits, nil
}

func conversationOf(row store.Conversation) (Conversation, error) {
	c := Conversation{
		ID: row.ID, Title: row.Title, Pinned: row.Pinned, Created: row.Created, Updated: row.Updated, Head: row.Head,
		SystemPrompt: row.SystemPrompt, Draft: row.Draft,
	}
	if err := optional(row.Sampling, &c.Sampling); err != nil {
		return c, fmt.Errorf("the sampling values of conversation %s are damaged: %w", row.ID, err)
	}
	return c, nil
}

func conversationRow(c Conversation) (store.Conversation, error) {
	row := store.Conversation{
		ID: c.ID, Title: c.Title, Pinned: c.Pinned, Created: c.Created, Updated: c.Updated, Head: c.Head,
		SystemPrompt: c.SystemPrompt, Draft: c.Draft,
	}
	var err error
	if c.Sampling != nil {
		row.Sampling, err = json.Marshal(c.Sampling)
	}
	return row, err
}

func messageRow(m Message) (store.Message, error) {
	row := store.Message{
		ID: m.ID, Conversation: m.Conversation, Parent: m.Parent, Role: m.Role, Text: m.Text, Thinking: m.Thinking,
		State: m.State, Error: m.Error, Created: m.Created,
	}
	var err error
	if m.Receipt != nil {
		row.Receipt, err = json.Marshal(m.Receipt)
	}
	return row, err
}

func optional[T any](raw json.RawMessage, to **T) error {
	if len(raw) == 0 {
		return nil
	}
	return json.Unmarshal(raw, to)
}
