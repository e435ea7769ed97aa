package app

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"colibri/backend/chat"
	"colibri/backend/container"
	"colibri/backend/engine"
	"colibri/backend/residency"
	"colibri/backend/telemetry"
)

// keptConversationsBytes is room for a few dozen long conversations of a large model (180 KB a token).
const keptConversationsBytes = 8 << 30

// RealEngine is the engine of this program. In cacheDir it keeps what can be computed again: the keys and values of conversations, so that
// they go on after a restart without that. The system may empty the folder at any time; that costs time, no words.
func RealEngine(cacheDir string) Engine {
	return realEngine{
		kept:  engine.KVStore{Dir: filepath.Join(cacheDir, "kv"), LimitBytes: keptConversationsBytes},
		rates: &measuredRates{path: filepath.Join(cacheDir, "machine.json")},
	}
}

type realEngine struct {
	kept  engine.KVStore
	rates *measuredRates
}

func (e realEngine) Forget(conversation string) error { return e.kept.Remove(conversation) }
func (e realEngine) Sweep(living []string) error      { return e.kept.Sweep(living) }

func (e realEngine) Describe(ctx context.Context, dir string, memoryBytes int64) (Container, error) {
	d, err := container.Describe(dir)
	if err != nil {
		return Container{}, err
	}
	load := residency.LoadOf(d, plannedTokens)
	c := Container{
		Name: d.Name, Path: dir, Family: d.Family, Parameters: d.Parameters, Bytes: d.FileBytes, Layers: d.Layers,
		Experts: d.Experts, PerToken: d.ExpertsPerToken, Context: d.Context, NeedBytes: load.NeedBytes(),
	}
	if len(d.ExpertSizes) > 0 {
		c.Format = d.ExpertSizes[0].Formats
	}
	if rates := e.rates.known(); rates.Has(d.Multiplied) {
		speed := expectedSpeed(ctx, dir, load, rates, memoryBytes)
		c.SpeedLow, c.SpeedHigh = speed.Low, speed.High
	}
	return c, nil
}

func (e realEngine) Measure(ctx context.Context, dir string) error {
	d, err := container.Describe(dir)
	if err != nil {
		return err
	}
	return e.rates.measure(ctx, d)
}

func (e realEngine) Load(ctx context.Context, dir, backend string, memoryBytes int64, progress func(string, float64)) (Model, error) {
	m, err := engine.Load(ctx, dir, engine.Options{
		Backend: backend, MemoryBytes: memoryBytes, History: true,
		Progress: func(p engine.Progress) {
			progress("Reading the weights", float64(p.DoneBytes)/float64(max(p.TotalBytes, 1)))
		},
	})
	if err != nil {
		return nil, err
	}
	progress("Getting ready", 1)
	tok := m.Tokenizer()
	if tok == nil {
		return nil, errors.Join(fmt.Errorf("%s has no tokenizer.json, so it cannot be talked to; copy it from the original model", dir), m.Close())
	}
	template, err := chat.LoadTemplate(dir, tok, m.Config().EOS)
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	// Another model's tokenizer shows here where it has more tokens than the model: in every question. Tokens beyond the model's that no text
	// becomes do no harm; some published tokenizers list such.
	greeting, err := template.Prompt([]chat.Message{{Role: chat.User, Text: "Hello"}}, chat.Options{})
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	if words := m.Config().Vocabulary; slices.ContainsFunc(greeting.IDs, func(id int32) bool { return int(id) >= words }) {
		return nil, errors.Join(fmt.Errorf("the tokenizer.json in %s has %d tokens and the model %d, so it belongs to another model; copy it from the original model", dir, tok.Size(), words), m.Close())
	}
	session, err := m.NewSession()
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return &realModel{model: m, template: template, session: session, kept: e.kept}, nil
}

// realModel is a loaded model with the one session that all conversations share: it keeps what consecutive prompts have in common.
type realModel struct {
	model    *engine.Model
	template *chat.Template
	session  *engine.Session
	kept     engine.KVStore
}

func (m *realModel) Backend() string           { return m.model.Backend() }
func (m *realModel) ContextTokens() int        { return m.model.Config().MaxPositions }
func (m *realModel) Stats() telemetry.Snapshot { return m.model.Stats() }
func (m *realModel) Atlas() telemetry.Atlas    { return m.model.Recorder().Atlas() }

func (m *realModel) CountTokens(messages []chat.Message) (int, error) {
	p, err := m.template.Prompt(messages, chat.Options{})
	return len(p.IDs), err
}

func (m *realModel) Answer(ctx context.Context, r Request, emit func(Token) error) (Answered, error) {
	p, err := m.template.Prompt(r.Messages, chat.Options{Continue: r.Continue})
	if err != nil {
		return Answered{}, err
	}
	// Without the kept conversation the answer is the same, later: the reason is told, and the answer goes on.
	if _, err := m.session.ResumeKV(ctx, m.kept, p.IDs); err != nil && ctx.Err() == nil {
		m.model.Recorder().Notice(err.Error())
	}
	shown := splitting{p.Splitter, emit}
	result, err := m.session.Generate(ctx, engine.Request{
		Prompt: p.IDs, MaxTokens: r.Sampling.MaxTokens, StopIDs: p.StopIDs,
		ThinkingOpen: p.ThinkingOpen, ThinkStartID: p.ThinkStartID, ThinkEndID: p.ThinkEndID,
		Sampling: engine.Sampling{
			Temperature: r.Sampling.Temperature, TopP: r.Sampling.TopP, TopK: r.Sampling.TopK, MinP: r.Sampling.MinP,
			RepetitionPenalty: r.Sampling.RepetitionPenalty, PresencePenalty: r.Sampling.PresencePenalty, Seed: r.Sampling.Seed,
		},
		Progress: r.Progress,
	}, func(piece engine.Piece) error {
		return shown.push(Token{Text: piece.Text, Thinking: piece.Thinking, Notice: piece.Notice})
	})
	if flushErr := shown.flush(); err == nil && ctx.Err() == nil {
		err = flushErr
	}
	if saveErr := m.session.SaveKV(context.WithoutCancel(ctx), m.kept, r.Conversation); saveErr != nil {
		m.model.Recorder().Notice(saveErr.Error())
	}
	s := result.Stats
	out := Answered{
		PromptTokens: result.PromptTokens, ReusedTokens: result.ReusedTokens, Tokens: len(result.IDs),
		FinishReason: string(result.FinishReason), Seed: result.Seed,
		TimeToFirstTokenMillis: s.TimeToFirstTokenMillis, PrefillTokensPerSecond: s.PrefillTokensPerSecond, TokensPerSecond: s.TokensPerSecond,
		ReadBytes: int64(s.BytesRead), MemoryLimitBytes: s.MemoryLimitBytes,
		AttentionMillis: s.AttentionMillis, ExpertMillis: s.ExpertMillis, WaitMillis: s.WaitMillis, OtherMillis: s.OtherMillis,
	}
	if uses := s.ExpertHits + s.ExpertMisses; uses > 0 {
		out.HitRate = float64(s.ExpertHits) / float64(uses)
	}
	return out, err
}

// splitting passes tokens on, thinking told from answer by the text where the model has no tokens for that.
type splitting struct {
	by   *chat.Splitter // nil: the engine has told them apart
	emit func(Token) error
}

func (s splitting) push(t Token) error {
	if s.by == nil {
		return s.emit(t)
	}
	thinking, answer := s.by.Push(t.Text)
	return s.parts(thinking, answer, t.Notice)
}

func (s splitting) flush() error {
	if s.by == nil {
		return nil
	}
	thinking, answer := s.by.Flush()
	if thinking == "" && answer == "" {
		return nil
	}
	return s.parts(thinking, answer, "")
}

// parts emits one token as one, unless it ends thinking and begins the answer.
func (s splitting) parts(thinking, answer, notice string) error {
	if thinking != "" && answer != "" {
		if err := s.emit(Token{Text: thinking, Thinking: true}); err != nil {
			return err
		}
		thinking = ""
	}
	return s.emit(Token{Text: thinking + answer, Thinking: thinking != "", Notice: notice})
}

func (m *realModel) Close() error { return errors.Join(m.session.Close(), m.model.Close()) }
