// Package chat turns conversations into prompts: it finds the model's chat template, renders it, and hands the tokenizer the
// result with every character marked as written by the template or by a person, so that nothing a person (or the model)
// wrote can become a control token. It also fits conversations into a context window.
//
// It knows templates and token ids. It knows nothing of weights, generation, storage or windows.
package chat

// Message is one turn of a conversation.
type Message struct {
	Role     string // system, user, assistant
	Text     string
	Thinking string // of assistants: what came before the answer, as it was generated, white space included
}

// The roles of messages.
const (
	System    = "system"
	User      = "user"
	Assistant = "assistant"
)
