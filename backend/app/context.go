package app

import (
	"strings"

	"colibri/backend/chat"
)

// ContextUse is what the context meter shows.
type ContextUse struct {
	Known          bool    `json:"known"` // false while no model is loaded
	Tokens         int     `json:"tokens"`
	Limit          int     `json:"limit"`
	PrefillSeconds float64 `json:"prefillSeconds"` // expected wait for the first word; 0 when not known
}

// MeasureContext counts the prompt that sending text below parent would make. Text alone costs about what its new part costs: the
// conversation before it is still in the engine's memory if its last answer came from there.
func (a *App) MeasureContext(conversation, parent, text string) (ContextUse, error) {
	a.mu.Lock()
	model, ready := a.model.loaded, a.model.Phase == ModelReady
	var prompt []chat.Message
	var prefillRate float64
	var reused int
	if ready && conversation != "" {
		c, err := a.opts.Store.Conversation(conversation)
		if err != nil {
			a.mu.Unlock()
			return ContextUse{}, err
		}
		messages, err := a.opts.Store.Messages(conversation)
		if err != nil {
			a.mu.Unlock()
			return ContextUse{}, err
		}
		if strings.TrimSpace(c.SystemPrompt) != "" {
			prompt = append(prompt, chat.Message{Role: chat.System, Text: c.SystemPrompt})
		}
		for _, m := range branch(messages, parent) {
			prompt = append(prompt, chat.Message{Role: m.Role, Text: m.Text, Thinking: m.Thinking})
			if m.Receipt != nil && m.Receipt.PrefillTokensPerSecond > 0 {
				prefillRate = m.Receipt.PrefillTokensPerSecond
			}
		}
		if a.lastDriven == conversation {
			reused = a.lastTokens
		}
	}
	a.mu.Unlock()
	if !ready || model == nil {
		return ContextUse{}, nil
	}
	if strings.TrimSpace(text) != "" {
		prompt = append(prompt, chat.Message{Role: chat.User, Text: text})
	}
	use := ContextUse{Known: true, Limit: model.ContextTokens()}
	if len(prompt) == 0 {
		return use, nil
	}
	n, err := model.CountTokens(prompt)
	if err != nil {
		return ContextUse{}, Reading.Refuse(err)
	}
	use.Tokens = n
	if prefillRate > 0 {
		use.PrefillSeconds = float64(max(n-reused, 0)) / prefillRate
	}
	return use, nil
}
