package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/google/uuid"
)

// exported is the JSON form of a conversation: everything the store holds. Version 1.
type exported struct {
	Format        string         `json:"format"`
	Version       int            `json:"version"`
	Conversations []exportedChat `json:"conversations"`
}

type exportedChat struct {
	Conversation Conversation `json:"conversation"`
	Messages     []Message    `json:"messages"`
}

const exportFormat = "colibri-conversations"

// Export renders a conversation: "markdown" is the branch that is shown, for people; "json" is the whole tree, for Import.
func (a *App) Export(id, format string) (name string, content []byte, err error) {
	t, err := a.Transcript(id)
	if err != nil {
		return "", nil, err
	}
	base := fileName(shown(t.Conversation.Title))
	switch format {
	case "markdown":
		return base + ".md", []byte(markdown(t)), nil
	case "json":
		content, err = json.MarshalIndent(exported{exportFormat, 1, []exportedChat{{t.Conversation, t.Messages}}}, "", "  ")
		return base + ".json", content, err
	}
	return "", nil, fmt.Errorf("%q is not a form to export; use markdown or json", format)
}

// WriteExport writes an exported conversation where the user wants it. Where that fails, a file that was there before stays.
func WriteExport(path string, content []byte) error {
	if err := replaceFile(path, content, 0o644); err != nil {
		return fmt.Errorf("the chat was not exported: %w", err)
	}
	return nil
}

func markdown(t Transcript) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", shown(t.Conversation.Title))
	if t.Conversation.SystemPrompt != "" {
		fmt.Fprintf(&b, "\n> %s\n", strings.ReplaceAll(t.Conversation.SystemPrompt, "\n", "\n> "))
	}
	for _, m := range branch(t.Messages, t.Conversation.Head) {
		who := "You"
		if m.Role == "assistant" {
			who = "Answer"
			if m.Receipt != nil {
				who = m.Receipt.Model
			}
		}
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", who, strings.TrimSpace(m.Text))
		if m.State == MessageFailed || m.State == MessageStopped || m.State == MessageInterrupted {
			fmt.Fprintf(&b, "\n*(%s)*\n", m.State)
		}
	}
	return b.String()
}

// fileName makes a title fit for every file system.
func fileName(title string) string {
	name := strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || strings.ContainsRune(`/\:*?"<>|`, r) {
			return '-'
		}
		return r
	}, title)
	name = strings.Trim(name, " .-")
	for len(name) > 100 {
		runes := []rune(name)
		name = string(runes[:len(runes)-1])
	}
	if name == "" {
		return "Chat"
	}
	return name
}

// maxAnnounced conversations are told to the page one by one; of more it reads the whole list again.
const maxAnnounced = 50

const maxImportBytes = 256 << 20

// Import adds the conversations of a file that Export wrote, as new ones. It checks the whole file first and keeps all of it or nothing.
func (a *App) Import(path string) (int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	if info.Size() > maxImportBytes {
		return 0, fmt.Errorf("%s is larger than %d MB; it is not a chat that Colibri exported", path, maxImportBytes>>20)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	var file exported
	if err := json.Unmarshal(raw, &file); err != nil || file.Format != exportFormat {
		return 0, fmt.Errorf("%s is not a chat that Colibri exported as JSON", path)
	}
	if file.Version != 1 {
		return 0, fmt.Errorf("%s was written by a newer Colibri (version %d of the format); update Colibri to import it", path, file.Version)
	}
	now := time.Now().UnixMilli()
	for i := range file.Conversations {
		if err := renew(&file.Conversations[i], now-int64(i)); err != nil {
			return 0, fmt.Errorf("%s: chat %d: %w", path, i+1, err)
		}
	}
	var conversations []Conversation
	var messages []Message
	for _, chat := range file.Conversations {
		conversations = append(conversations, chat.Conversation)
		messages = append(messages, chat.Messages...)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.opts.Store.PutAll(conversations, messages); err != nil {
		return 0, fmt.Errorf("the chats could not be kept: %w", err)
	}
	if len(conversations) > maxAnnounced {
		a.events.post("resync", "resync", nil)
	} else {
		for _, c := range conversations {
			a.postConversationLocked(c)
		}
	}
	return len(file.Conversations), nil
}

// renew gives an imported conversation ids of its own and checks that its messages form a tree.
func renew(chat *exportedChat, now int64) error {
	ids := map[string]string{"": ""}
	for _, m := range chat.Messages {
		if _, twice := ids[m.ID]; twice {
			return errors.New("two messages have the same id")
		}
		ids[m.ID] = uuid.NewString()
	}
	seen := map[string]bool{"": true}
	c := &chat.Conversation
	c.ID, c.Title, c.Updated = uuid.NewString(), tidyTitle(c.Title), now
	if c.Sampling != nil {
		if err := c.Sampling.Validate(); err != nil {
			return err
		}
	}
	for i := range chat.Messages {
		m := &chat.Messages[i]
		if !seen[m.Parent] {
			return errors.New("a message comes before the one it answers")
		}
		seen[m.ID] = true
		if m.Role != "user" && m.Role != "assistant" {
			return fmt.Errorf("a message has the unknown role %q", m.Role)
		}
		if m.State == MessageStreaming || m.State == "" {
			m.State = MessageInterrupted
		}
		m.ID, m.Parent, m.Conversation = ids[m.ID], ids[m.Parent], c.ID
	}
	head, ok := ids[c.Head]
	if !ok {
		return errors.New("the message it ends with is missing")
	}
	c.Head = head
	return nil
}
