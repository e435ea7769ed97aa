package app

import (
	"context"

	"colibri/backend/chat"
	"colibri/backend/telemetry"
)

// Engine is what the app needs of the engine. The adapter that satisfies it with the real one is in adapter.go.
type Engine interface {
	// Describe reads a container's headers and says what it is, or in one sentence why it cannot be used. It reads no weights.
	// The expected speed is in it once the machine was measured for such a model.
	Describe(ctx context.Context, dir string, memoryBytes int64) (Container, error)
	// Measure measures how fast this machine computes what a model needs, once; that takes a second or two of all processors.
	Measure(ctx context.Context, dir string) error
	// Load brings a model into memory, reporting stage and share done.
	Load(ctx context.Context, dir string, backend string, memoryBytes int64, progress func(stage string, done float64)) (Model, error)
	// Forget removes what was put away on disk of a conversation, Sweep what was put away of any but these.
	Forget(conversation string) error
	Sweep(living []string) error
}

// Model is a loaded model.
type Model interface {
	Backend() string
	ContextTokens() int
	Stats() telemetry.Snapshot // cheap; any goroutine
	Atlas() telemetry.Atlas
	CountTokens(messages []chat.Message) (int, error) // of the prompt that they make
	// Answer generates one answer; the model keeps what it computed for the next. One call at a time.
	Answer(ctx context.Context, request Request, emit func(Token) error) (Answered, error)
	Close() error
}

// Request asks for the answer to Messages. With Continue, the last of them is an assistant's and is taken up where it ends.
type Request struct {
	Conversation string // under its id the model may put away what it computed
	Messages     []chat.Message
	Continue     bool
	Sampling     Sampling
	Progress     func(promptDone, promptTokens int)
}

// Token is what one token adds to the answer.
type Token struct {
	Text     string
	Thinking bool
	Notice   string // something the user should see beside the text
}

// Answered is how an answer ended.
type Answered struct {
	PromptTokens, ReusedTokens, Tokens int
	FinishReason                       string // stop, length, context, cancelled
	Seed                               int64
	TimeToFirstTokenMillis             float64
	PrefillTokensPerSecond             float64
	TokensPerSecond                    float64
	ReadBytes                          int64
	HitRate                            float64
	MemoryLimitBytes                   int64
	AttentionMillis, ExpertMillis      float64
	WaitMillis, OtherMillis            float64
}

// Store keeps conversations. Every write is durable within a second. The adapter for the database is in storage.go.
type Store interface {
	Conversations() ([]Conversation, error) // newest first, without deleted ones
	Conversation(id string) (Conversation, error)
	Messages(conversation string) ([]Message, error)
	PutConversation(c Conversation) error                          // inserts or replaces
	PutMessage(m Message) error                                    // inserts or replaces
	PutAll(conversations []Conversation, messages []Message) error // all or none
	AppendText(message, text, thinking string) error
	Delete(conversation string) error  // can be undone
	Restore(conversation string) error // undoes Delete
	Search(query string, limit int) ([]Hit, error)
	Close() error
}
