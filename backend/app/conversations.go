package app

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// Transcript reads a conversation, answers in progress up to their newest piece included.
func (a *App) Transcript(id string) (Transcript, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return Transcript{}, err
	}
	messages, err := a.opts.Store.Messages(id)
	if err != nil {
		return Transcript{}, err
	}
	if g := a.generations[id]; g != nil {
		for i := range messages {
			if messages[i].ID == g.message.ID {
				messages[i] = g.current()
			}
		}
	}
	return Transcript{Seq: a.events.seal(), Conversation: c, Messages: messages}, nil
}

// edit changes a conversation in the store and tells the page.
func (a *App) edit(id string, change func(*Conversation) error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return err
	}
	if err := change(&c); err != nil {
		return err
	}
	return a.putConversationLocked(c)
}

func (a *App) putConversationLocked(c Conversation) error {
	if err := a.opts.Store.PutConversation(c); err != nil {
		return fmt.Errorf("the conversation could not be kept: %w", err)
	}
	a.postConversationLocked(c)
	return nil
}

func (a *App) postConversationLocked(c Conversation) {
	// Prompt and draft may be longer than an event; the page has them from Transcript.
	c.SystemPrompt, c.Draft = "", ""
	a.events.post("conversation", c.ID, c)
}

// Rename gives a conversation a title.
func (a *App) Rename(id, title string) error {
	title = tidyTitle(title)
	if title == "" {
		return errors.New("a title needs at least one character")
	}
	return a.edit(id, func(c *Conversation) error { c.Title = title; return nil })
}

// Pin keeps a conversation at the top, or lets it go.
func (a *App) Pin(id string, pinned bool) error {
	return a.edit(id, func(c *Conversation) error { c.Pinned = pinned; return nil })
}

// SaveDraft keeps what was typed and not sent.
func (a *App) SaveDraft(id, text string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return err
	}
	c.Draft = text
	return a.opts.Store.PutConversation(c)
}

// Configure sets a conversation's own system prompt and sampling (nil: the settings' defaults).
func (a *App) Configure(id, systemPrompt string, sampling *Sampling) error {
	if sampling != nil {
		if err := sampling.Validate(); err != nil {
			return err
		}
	}
	if len(systemPrompt) > 64<<10 {
		return errors.New("the system prompt is longer than 64 KB")
	}
	return a.edit(id, func(c *Conversation) error {
		c.SystemPrompt, c.Sampling = systemPrompt, sampling
		return nil
	})
}

// NewConversation makes an empty one, with the system prompt of the settings.
func (a *App) NewConversation() (Conversation, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now().UnixMilli()
	c := Conversation{ID: uuid.NewString(), Created: now, Updated: now, SystemPrompt: a.settings.SystemPrompt}
	return c, a.putConversationLocked(c)
}

// Delete removes a conversation from view; Restore brings it back, until the next start. What the engine has put away of it goes at once:
// it can be computed again.
func (a *App) Delete(id string) error {
	if err := a.hide(id); err != nil {
		return err
	}
	a.forget(id)
	return nil
}

// forget removes what the engine put away of a conversation. A failure costs disk space until sweep tries again at the next start.
func (a *App) forget(id string) {
	if err := a.opts.Engine.Forget(id); err != nil {
		a.log.Error("a deleted conversation's memory stays on disk until the next start", "conversation", id, "error", err)
	}
}

// sweep removes what the engine put away of conversations that are gone for good.
func (a *App) sweep() {
	conversations, err := a.opts.Store.Conversations()
	if err != nil {
		return // State says so
	}
	living := make([]string, len(conversations))
	for i, c := range conversations {
		living[i] = c.ID
	}
	if err := a.opts.Engine.Sweep(living); err != nil {
		a.log.Error("the memory of deleted conversations stays on disk", "error", err)
	}
}

func (a *App) hide(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return err
	}
	if g := a.generations[id]; g != nil {
		g.stop()
	}
	if err := a.opts.Store.Delete(id); err != nil {
		return fmt.Errorf("the conversation could not be deleted: %w", err)
	}
	a.events.post("conversation-removed", id, id)
	if c.Head != "" { // an empty one is not worth a question
		a.notify(Notice{Level: "info", Text: fmt.Sprintf("“%s” was deleted.", shown(c.Title)), Action: "undo-delete", Subject: id})
	}
	return nil
}

// Restore undoes Delete.
func (a *App) Restore(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.opts.Store.Restore(id); err != nil {
		return fmt.Errorf("the conversation could not be restored: %w", err)
	}
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return err
	}
	return a.putConversationLocked(c)
}

func shown(title string) string {
	if title == "" {
		return "New chat"
	}
	return title
}

// SelectBranch shows the branch that goes through a message, down to its newest end.
func (a *App) SelectBranch(id, message string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.generations[id] != nil {
		return errors.New("an answer is being written; stop it before choosing another version")
	}
	c, err := a.opts.Store.Conversation(id)
	if err != nil {
		return err
	}
	messages, err := a.opts.Store.Messages(id)
	if err != nil {
		return err
	}
	leaf, ok := newestLeaf(messages, message)
	if !ok {
		return errors.New("this version is gone; the conversation is being refreshed")
	}
	c.Head = leaf
	return a.putConversationLocked(c)
}

// Search looks for text in titles and messages.
func (a *App) Search(query string) ([]Hit, error) {
	if strings.TrimSpace(query) == "" {
		return []Hit{}, nil
	}
	hits, err := a.opts.Store.Search(query, 50)
	if hits == nil {
		hits = []Hit{}
	}
	return hits, err
}

// branch is the path from the first message to head.
func branch(messages []Message, head string) []Message {
	byID := make(map[string]Message, len(messages))
	for _, m := range messages {
		byID[m.ID] = m
	}
	var path []Message
	for id := head; id != ""; {
		m, ok := byID[id]
		if !ok || len(path) > len(messages) { // a damaged tree ends where the damage is
			break
		}
		path = append(path, m)
		id = m.Parent
	}
	slices.Reverse(path)
	return path
}

// newestLeaf follows the youngest child from a message down.
func newestLeaf(messages []Message, id string) (leaf string, ok bool) {
	children := map[string]Message{} // youngest, by parent
	for _, m := range messages {
		if m.ID == id {
			ok = true
		}
		if youngest, there := children[m.Parent]; !there || m.Created >= youngest.Created {
			children[m.Parent] = m
		}
	}
	for range messages {
		child, there := children[id]
		if !there {
			break
		}
		id = child.ID
	}
	return id, ok
}

// tidyTitle makes one line of at most 80 characters without control characters.
func tidyTitle(text string) string {
	line := strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	runes := []rune(line)
	if len(runes) <= 80 {
		return line
	}
	cut := 79
	for i := cut; i > 50; i-- {
		if runes[i] == ' ' {
			cut = i
			break
		}
	}
	return strings.TrimSpace(string(runes[:cut])) + "…"
}
