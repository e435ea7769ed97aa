package app

import "colibri/backend/telemetry"

// The types of the bridge. TypeScript types are generated from those that bound methods use; the others are mirrored in
// frontend/src/lib/bridge/types.ts. Times are milliseconds since 1970, which JavaScript numbers hold exactly.

// State is the whole picture, as of event number Seq.
type State struct {
	Session       string             `json:"session"`
	Seq           int64              `json:"seq"`
	Settings      Settings           `json:"settings"`
	Containers    []Container        `json:"containers"`
	Model         ModelStatus        `json:"model"`
	Conversations []Conversation     `json:"conversations"`
	Generations   []GenerationStatus `json:"generations"`
	Offers        []Offer            `json:"offers"`
	Stats         Stats              `json:"stats"`
}

// Conversation is what the sidebar and the header of a transcript show.
type Conversation struct {
	ID           string    `json:"id"`
	Title        string    `json:"title"`
	Pinned       bool      `json:"pinned"`
	Created      int64     `json:"created"`
	Updated      int64     `json:"updated"`
	Head         string    `json:"head"` // the last message of the branch that is shown, "" when empty
	SystemPrompt string    `json:"systemPrompt"`
	Sampling     *Sampling `json:"sampling"` // nil: the settings' defaults
	Draft        string    `json:"draft"`
}

// Message is one turn. Messages form a tree: an edited question and a second answer are siblings.
type Message struct {
	ID           string   `json:"id"`
	Conversation string   `json:"conversation"`
	Parent       string   `json:"parent"` // "" for the first
	Role         string   `json:"role"`   // user, assistant
	Text         string   `json:"text"`
	Thinking     string   `json:"thinking"`
	State        string   `json:"state"` // see the Message… constants
	Error        string   `json:"error"`
	Receipt      *Receipt `json:"receipt"`
	Created      int64    `json:"created"`
}

// The states of a message. What a killed program left streaming is interrupted when it is read again.
const (
	MessageStreaming   = "streaming"
	MessageDone        = "done"
	MessageStopped     = "stopped"
	MessageFailed      = "failed"
	MessageInterrupted = "interrupted"
)

// Transcript is a conversation with every message of its tree, as of event number Seq.
type Transcript struct {
	Seq          int64        `json:"seq"`
	Conversation Conversation `json:"conversation"`
	Messages     []Message    `json:"messages"`
}

// Hit is a place where a search found something. Snippet marks the match with the characters U+0002 and U+0003.
type Hit struct {
	Conversation string `json:"conversation"`
	Message      string `json:"message"` // "" when the title matched
	Title        string `json:"title"`
	Snippet      string `json:"snippet"`
	Updated      int64  `json:"updated"`
}

// Receipt says how an answer came about, so that it can be judged and repeated.
type Receipt struct {
	Model                  string   `json:"model"`
	Backend                string   `json:"backend"`
	PromptTokens           int      `json:"promptTokens"`
	ReusedTokens           int      `json:"reusedTokens"`
	Tokens                 int      `json:"tokens"`
	FinishReason           string   `json:"finishReason"`
	TimeToFirstTokenMillis float64  `json:"timeToFirstTokenMillis"`
	TokensPerSecond        float64  `json:"tokensPerSecond"`
	PrefillTokensPerSecond float64  `json:"prefillTokensPerSecond"`
	ReadBytes              int64    `json:"readBytes"`
	HitRate                float64  `json:"hitRate"`
	MemoryLimitBytes       int64    `json:"memoryLimitBytes"`
	Seed                   int64    `json:"seed"`
	Sampling               Sampling `json:"sampling"`
	AttentionMillis        float64  `json:"attentionMillis"` // where the time went, prompt included
	ExpertMillis           float64  `json:"expertMillis"`
	WaitMillis             float64  `json:"waitMillis"` // for experts to be read
	OtherMillis            float64  `json:"otherMillis"`
	DroppedMessages        int      `json:"droppedMessages"` // earlier messages that did not fit the context
}

// Sampling are the settings of the draw. Seed −1 means a fresh one for each answer; zero switches top-k and min-p off.
type Sampling struct {
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"topP"`
	TopK              int     `json:"topK"`
	MinP              float64 `json:"minP"`
	RepetitionPenalty float64 `json:"repetitionPenalty"`
	PresencePenalty   float64 `json:"presencePenalty"`
	Seed              int64   `json:"seed"`
	MaxTokens         int     `json:"maxTokens"`
}

// Container is a model in the library.
type Container struct {
	ID         string  `json:"id"`
	Name       string  `json:"name"`
	Path       string  `json:"path"`
	Bundled    bool    `json:"bundled"`
	Missing    bool    `json:"missing"` // nothing is at Path at the moment
	Family     string  `json:"family"`
	Format     string  `json:"format"`     // quantisation of the experts
	Parameters int64   `json:"parameters"` // 0 before it was described
	Bytes      int64   `json:"bytes"`
	Layers     int     `json:"layers"`
	Experts    int     `json:"experts"`
	PerToken   int     `json:"perToken"`
	Context    int     `json:"context"`
	NeedBytes  int64   `json:"needBytes"` // the least memory it runs in
	SpeedLow   float64 `json:"speedLow"`  // expected tokens per second, 0 when unknown
	SpeedHigh  float64 `json:"speedHigh"`
	Added      int64   `json:"added"`
	LastUsed   int64   `json:"lastUsed"`
}

// Offer is a dropped or opened path that turned out to be a container, or the sentence that says why it is not.
type Offer struct {
	ID        string     `json:"id"`
	Path      string     `json:"path"`
	Container *Container `json:"container"`
	Measuring bool       `json:"measuring"` // its speed is being found, and follows
	Error     string     `json:"error"`
}

// ModelPhase is where a model is on its way into memory.
type ModelPhase string

const (
	ModelNone    ModelPhase = "none"
	ModelLoading ModelPhase = "loading"
	ModelReady   ModelPhase = "ready"
	ModelFailed  ModelPhase = "failed"
)

// ModelStatus is the state of the one model the program holds.
type ModelStatus struct {
	Phase    ModelPhase `json:"phase"`
	ID       string     `json:"id"`
	Name     string     `json:"name"`
	Stage    string     `json:"stage"`    // what loading is doing, in words
	Progress float64    `json:"progress"` // 0 … 1
	Error    string     `json:"error"`
	Backend  string     `json:"backend"`
	Context  int        `json:"context"` // positions
}

// GenerationStatus is the state of an answer in progress; it is absent when none is.
type GenerationStatus struct {
	Conversation    string  `json:"conversation"`
	Message         string  `json:"message"`
	Phase           string  `json:"phase"` // waiting (for the model or another answer), prefill, decode, stopping, done
	PromptTokens    int     `json:"promptTokens"`
	PromptDone      int     `json:"promptDone"`
	Tokens          int     `json:"tokens"`
	TokensPerSecond float64 `json:"tokensPerSecond"`
	Thinking        bool    `json:"thinking"`
}

// Piece is text that was added to a message.
type Piece struct {
	Conversation string `json:"conversation"`
	Message      string `json:"message"`
	Text         string `json:"text"`
	Thinking     bool   `json:"thinking"`
}

// Notice is a sentence for the user. Action names something the window can offer with it: "undo-delete" with Subject.
type Notice struct {
	Level   string `json:"level"` // info, warning, error
	Text    string `json:"text"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
}

// Stats is what gauge and activity panel draw.
type Stats struct {
	Snapshot        telemetry.Snapshot `json:"snapshot"`
	HitRate         float64            `json:"hitRate"`
	TokensPerSecond float64            `json:"tokensPerSecond"`    // over the last second of generation
	ReadPerSecond   float64            `json:"readBytesPerSecond"` // over the last second
	Split           TimeSplit          `json:"split"`
	Memory          SystemMemory       `json:"memory"`
	Pressure        string             `json:"pressure"` // normal, warning, critical, unknown
}

// TimeSplit is where the engine's time went in the last second of work, prompts included. Tokens are the answer's; 0 while a prompt is
// computed.
type TimeSplit struct {
	Tokens          int64   `json:"tokens"`
	AttentionMillis float64 `json:"attentionMillis"`
	ExpertMillis    float64 `json:"expertMillis"`
	WaitMillis      float64 `json:"waitMillis"` // for experts to be read
	OtherMillis     float64 `json:"otherMillis"`
}

// SystemMemory is the machine's memory as a whole; a field the system does not report is −1.
type SystemMemory struct {
	TotalBytes      int64 `json:"totalBytes"`
	FreeBytes       int64 `json:"freeBytes"`
	FileCacheBytes  int64 `json:"fileCacheBytes"`
	CompressedBytes int64 `json:"compressedBytes"`
	ProcessBytes    int64 `json:"processBytes"`
}
