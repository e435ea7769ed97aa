package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"colibri/backend/chat"

	"github.com/google/uuid"
)

// GenerateRequest asks for an answer.
type GenerateRequest struct {
	Conversation string `json:"conversation"`
	// Mode is send (Text becomes a question below Parent; "" begins the conversation, or a second version of its beginning), regenerate
	// (another answer to the question Parent) or continue (the answer Parent is taken up where it ended).
	Mode   string `json:"mode"`
	Parent string `json:"parent"`
	Text   string `json:"text"`
	// Sampling overrides the conversation's values for this answer: "again with the same settings", seed included.
	Sampling *Sampling `json:"sampling"`
}

// Generated names what Generate created.
type Generated struct {
	Question string `json:"question"` // "" unless Mode was send
	Answer   string `json:"answer"`
}

// maxQuestionBytes bounds one question; the context of the largest models holds about this much text.
const maxQuestionBytes = 4 << 20

// generation is one answer in progress. It belongs to its conversation, whatever the page shows. Fields are guarded by App.mu.
type generation struct {
	status         GenerationStatus
	message        Message // text as it was at the start; see current
	text, thinking strings.Builder
	unsaved        bool // a piece could not be kept, and the log says so
	cancel         context.CancelFunc
	firstToken     time.Time
	posted         GenerationStatus // what the page was told last, and when
	postedAt       time.Time
}

// figuresInterval is how long the figures of a running answer stand. They can be read at this pace, and not at that of the tokens, at which
// laying out and painting one figure takes the page half as long as the text itself.
const figuresInterval = 250 * time.Millisecond

// due says whether the page should be told: at once of another phase, of figures when the last have stood long enough.
func (g *generation) due(now time.Time) bool {
	return g.status.Phase != g.posted.Phase || g.status.Thinking != g.posted.Thinking || now.Sub(g.postedAt) >= figuresInterval
}

func (g *generation) current() Message {
	m := g.message
	m.Text += g.text.String()
	m.Thinking += g.thinking.String()
	return m
}

func (g *generation) stop() {
	g.status.Phase = "stopping"
	g.cancel()
}

// Generate stores the question and begins an answer. It returns before the first word.
func (a *App) Generate(r GenerateRequest) (Generated, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ctx.Err() != nil {
		return Generated{}, errClosing
	}
	if a.generations[r.Conversation] != nil {
		return Generated{}, errors.New("this conversation is still being answered; stop the answer first")
	}
	c, err := a.opts.Store.Conversation(r.Conversation)
	if err != nil {
		return Generated{}, err
	}
	messages, err := a.opts.Store.Messages(c.ID)
	if err != nil {
		return Generated{}, err
	}
	sampling := a.settings.Sampling
	if c.Sampling != nil {
		sampling = *c.Sampling
	}
	if r.Sampling != nil {
		sampling = *r.Sampling
	}
	if err := sampling.Validate(); err != nil {
		return Generated{}, err
	}

	var out Generated
	var answer Message
	now := time.Now().UnixMilli()
	find := func(id, role string) (Message, error) {
		for _, m := range messages {
			if m.ID == id && m.Role == role {
				return m, nil
			}
		}
		return Message{}, errors.New("the message is gone; the conversation is being refreshed")
	}
	switch r.Mode {
	case "send":
		if strings.TrimSpace(r.Text) == "" {
			return Generated{}, errors.New("there is nothing to send")
		}
		if len(r.Text) > maxQuestionBytes {
			return Generated{}, fmt.Errorf("the question is %d MB long; at most %d MB can be sent", len(r.Text)>>20, maxQuestionBytes>>20)
		}
		if r.Parent != "" {
			if _, err := find(r.Parent, "assistant"); err != nil {
				return Generated{}, err
			}
		}
		question := Message{ID: uuid.NewString(), Conversation: c.ID, Parent: r.Parent, Role: "user", Text: r.Text, State: MessageDone, Created: now}
		if err := a.putMessageLocked(question); err != nil {
			return Generated{}, err
		}
		if c.Title == "" {
			c.Title = tidyTitle(r.Text)
		}
		c.Draft = ""
		messages = append(messages, question)
		out.Question = question.ID
		r.Parent = question.ID
		fallthrough
	case "regenerate":
		if _, err := find(r.Parent, "user"); err != nil {
			return Generated{}, err
		}
		answer = Message{ID: uuid.NewString(), Conversation: c.ID, Parent: r.Parent, Role: "assistant", Created: now}
	case "continue":
		if answer, err = find(r.Parent, "assistant"); err != nil {
			return Generated{}, err
		}
	default:
		return Generated{}, fmt.Errorf("%q is not a way to generate", r.Mode)
	}
	answer.State, answer.Error = MessageStreaming, ""
	if err := a.putMessageLocked(answer); err != nil {
		return Generated{}, err
	}
	c.Head, c.Updated = answer.ID, now
	if err := a.putConversationLocked(c); err != nil {
		return Generated{}, err
	}
	out.Answer = answer.ID

	ctx, cancel := context.WithCancel(a.ctx)
	g := &generation{
		message: answer, cancel: cancel,
		status: GenerationStatus{Conversation: c.ID, Message: answer.ID, Phase: "waiting"},
	}
	a.generations[c.ID] = g
	a.postGenerationLocked(g)
	a.awake.set(true)
	a.poke()

	path := branch(messages, answer.Parent)
	prompt := make([]chat.Message, 0, len(path)+2)
	if strings.TrimSpace(c.SystemPrompt) != "" {
		prompt = append(prompt, chat.Message{Role: chat.System, Text: c.SystemPrompt})
	}
	for _, m := range path {
		prompt = append(prompt, chat.Message{Role: m.Role, Text: m.Text, Thinking: m.Thinking})
	}
	if r.Mode == "continue" {
		prompt = append(prompt, chat.Message{Role: chat.Assistant, Text: answer.Text, Thinking: answer.Thinking})
	}
	a.work.Add(1)
	go a.answer(ctx, g, Request{Conversation: c.ID, Messages: prompt, Continue: r.Mode == "continue", Sampling: sampling})
	return out, nil
}

func (a *App) putMessageLocked(m Message) error {
	if err := a.opts.Store.PutMessage(m); err != nil {
		return fmt.Errorf("the message could not be kept: %w", err)
	}
	return nil
}

// Stop ends the answer in a conversation; what was generated is kept. Stopping nothing is no error: the answer may just have ended.
func (a *App) Stop(conversation string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if g := a.generations[conversation]; g != nil {
		g.stop()
		a.postGenerationLocked(g)
	}
}

// StopAll ends every answer: before sleep, and before the model changes.
func (a *App) StopAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.stopAllLocked()
}

func (a *App) stopAllLocked() {
	for _, g := range a.generations {
		g.stop()
		a.postGenerationLocked(g)
	}
}

func (a *App) postGenerationLocked(g *generation) {
	g.posted, g.postedAt = g.status, time.Now()
	a.events.post("generation", g.status.Conversation, g.status)
}

func (a *App) answer(ctx context.Context, g *generation, r Request) {
	defer a.work.Done()
	defer g.cancel()
	answered, dropped, model, err := a.drive(ctx, g, r)
	a.finish(g, r, answered, dropped, model, err)
	// Deleted while it was answered: the engine has put it away since.
	if _, gone := a.opts.Store.Conversation(r.Conversation); gone != nil {
		a.forget(r.Conversation)
	}
}

// drive waits for model and turn and runs the engine.
func (a *App) drive(ctx context.Context, g *generation, r Request) (answered Answered, dropped int, status ModelStatus, err error) {
	var model Model
	for model == nil {
		if err = a.awaitModel(ctx); err != nil {
			return
		}
		if err = a.takeTurn(ctx); err != nil {
			return
		}
		a.mu.Lock()
		model, status = a.model.loaded, a.model.ModelStatus
		if status.Phase != ModelReady {
			model = nil
		} else if g.status.Phase == "waiting" {
			g.status.Phase = "prefill"
			a.postGenerationLocked(g)
		}
		a.mu.Unlock()
		if model == nil { // another load came first
			a.giveTurn()
		}
	}
	defer a.giveTurn()

	kept, left, err := chat.Fit(r.Messages, promptRoom(model.ContextTokens(), r.Sampling.MaxTokens), model.CountTokens)
	if err != nil {
		return
	}
	r.Messages, dropped = kept, len(left)
	r.Progress = func(done, total int) {
		a.awaitResume(ctx)
		a.mu.Lock()
		defer a.mu.Unlock()
		if g.status.Phase == "stopping" {
			return
		}
		g.status.Phase, g.status.PromptDone, g.status.PromptTokens = "prefill", done, total
		a.postGenerationLocked(g)
	}
	answered, err = model.Answer(ctx, r, func(t Token) error {
		a.receive(g, t)
		a.awaitResume(ctx)
		return ctx.Err()
	})
	return
}

// SetPaused holds answers between two tokens, before the machine sleeps, and lets them go on afterwards: nothing is in the
// processors' hands while they are switched off.
func (a *App) SetPaused(paused bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if paused == (a.resumed != nil) {
		return
	}
	if paused {
		a.resumed = make(chan struct{})
		return
	}
	close(a.resumed)
	a.resumed = nil
}

// awaitResume returns at once unless answers are held.
func (a *App) awaitResume(ctx context.Context) {
	a.mu.Lock()
	resumed := a.resumed
	a.mu.Unlock()
	if resumed == nil {
		return
	}
	select {
	case <-resumed:
	case <-ctx.Done():
	}
}

// receive takes a piece of the answer from the engine.
func (a *App) receive(g *generation, t Token) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	if g.firstToken.IsZero() {
		g.firstToken = now
	}
	g.status.Tokens++
	if seconds := now.Sub(g.firstToken).Seconds(); g.status.Tokens > 1 && seconds > 0 {
		g.status.TokensPerSecond = float64(g.status.Tokens-1) / seconds
	}
	g.status.Thinking = t.Thinking
	if g.status.Phase != "stopping" {
		g.status.Phase = "decode"
	}
	if g.due(now) {
		a.postGenerationLocked(g)
	}
	if t.Notice != "" {
		a.notify(Notice{Level: "warning", Text: t.Notice})
	}
	if t.Text == "" {
		return
	}
	piece := Piece{Conversation: g.status.Conversation, Message: g.message.ID, Text: t.Text, Thinking: t.Thinking}
	var text, thinking string
	if t.Thinking {
		thinking = t.Text
	} else {
		text = t.Text
	}
	g.text.WriteString(text)
	g.thinking.WriteString(thinking)
	a.events.piece(piece)
	// Not a reason to end the answer: its text is written whole at the end, and a failure then is shown.
	if err := a.opts.Store.AppendText(g.message.ID, text, thinking); err != nil && !g.unsaved {
		g.unsaved = true
		a.log.Error("streamed text was not kept", "message", g.message.ID, "error", err)
	}
}

func (a *App) finish(g *generation, r Request, answered Answered, dropped int, model ModelStatus, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := g.current()
	switch {
	case err == nil && answered.FinishReason != "cancelled":
		m.State = MessageDone
	case err == nil || errors.Is(err, context.Canceled):
		m.State = MessageStopped
	default:
		m.State, m.Error = MessageFailed, Answering.say(err)
		a.log.Error("an answer failed", "error", err)
	}
	if answered.PromptTokens > 0 {
		a.lastDriven, a.lastTokens = m.Conversation, answered.PromptTokens+answered.Tokens
	}
	if answered.Tokens > 0 || err == nil {
		r.Sampling.Seed = answered.Seed
		m.Receipt = &Receipt{
			Model: model.Name, Backend: model.Backend,
			PromptTokens: answered.PromptTokens, ReusedTokens: answered.ReusedTokens, Tokens: answered.Tokens,
			FinishReason: answered.FinishReason, TimeToFirstTokenMillis: answered.TimeToFirstTokenMillis,
			TokensPerSecond: answered.TokensPerSecond, PrefillTokensPerSecond: answered.PrefillTokensPerSecond,
			ReadBytes: answered.ReadBytes, HitRate: answered.HitRate, MemoryLimitBytes: answered.MemoryLimitBytes,
			AttentionMillis: answered.AttentionMillis, ExpertMillis: answered.ExpertMillis, WaitMillis: answered.WaitMillis, OtherMillis: answered.OtherMillis,
			Seed: answered.Seed, Sampling: r.Sampling, DroppedMessages: dropped,
		}
	}
	if err := a.opts.Store.PutMessage(Finite(m)); err != nil {
		a.log.Error("an answer was not kept", "message", m.ID, "error", err)
		a.notify(Notice{Level: "error", Text: KeepingAnswer.say(fmt.Errorf("the answer could not be written to disk: %w", err))})
	}
	delete(a.generations, m.Conversation)
	g.status.Phase = "done"
	a.postGenerationLocked(g)
	a.events.post("message", m.ID, withoutText(m))
	if c, err := a.opts.Store.Conversation(m.Conversation); err == nil {
		c.Updated = time.Now().UnixMilli()
		if err := a.putConversationLocked(c); err != nil {
			a.log.Error("a conversation was not kept", "error", err)
		}
	}
	if len(a.generations) == 0 {
		a.awake.set(false)
	}
}

// promptRoom is how long a prompt may be: the context less what the answer needs, of which a quarter of the context is enough to begin.
func promptRoom(contextTokens, maxTokens int) int {
	return contextTokens - min(maxTokens, contextTokens/4)
}

// withoutText is a message as an event carries it: the page has the text from the pieces.
func withoutText(m Message) Message {
	m.Text, m.Thinking = "", ""
	if len(m.Error) > 2000 {
		m.Error = m.Error[:2000] + "…"
	}
	return m
}
