package engine

import (
	"context"
	"time"

	"colibri/backend/metal"
	"colibri/backend/telemetry"
)

// Stats are the figures of one answer.
type Stats struct {
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"` // of the prompt tokens that were not reused
	TokensPerSecond        float64 `json:"tokens_per_second"`         // after the first token
	TimeToFirstTokenMillis float64 `json:"time_to_first_token_ms"`
	ExpertHits             uint64  `json:"expert_hits"`
	ExpertMisses           uint64  `json:"expert_misses"`
	BytesRead              uint64  `json:"bytes_read"`
	MemoryLimitBytes       int64   `json:"memory_limit_bytes"` // the user's, or what the machine can spare
	PeakBytes              int64   `json:"peak_bytes"`         // of the whole process, since it began
	Backend                string  `json:"backend"`

	DraftTokens    int `json:"draft_tokens"`
	AcceptedTokens int `json:"accepted_tokens"` // drafts that were right

	// Where the time of the answer went, prompt included.
	AttentionMillis float64 `json:"attention_ms"` // with norms, router and shared experts
	ExpertMillis    float64 `json:"expert_ms"`
	WaitMillis      float64 `json:"wait_ms"` // for experts to be read
	OtherMillis     float64 `json:"other_ms"`
}

// times is where the time of forward passes went.
type times struct{ attention, experts, waiting, other time.Duration }

func (t *times) add(later, earlier times) {
	t.attention += later.attention - earlier.attention
	t.experts += later.experts - earlier.experts
	t.waiting += later.waiting - earlier.waiting
	t.other += later.other - earlier.other
}

// counters are the expert counts an answer's own are the difference of.
type counters struct{ hits, misses, read uint64 }

func (m *Model) counters() counters {
	s := m.recorder.Snapshot()
	return counters{s.Hits, s.Misses, s.ReadBytes}
}

// turn takes the model's turn for one forward pass, and counts its time for this answer and for whoever watches.
func (a *answer) turn(ctx context.Context, work func() error) error {
	m := a.session.model
	return m.turn(ctx, func() error {
		before := m.times
		defer func() {
			var spent times
			spent.add(m.times, before)
			a.times.add(m.times, before)
			m.recorder.Spent(spent.attention, spent.experts, spent.other)
		}()
		return work()
	})
}

func (a *answer) stats(before counters) Stats {
	m := a.session.model
	now := m.counters()
	s := Stats{
		ExpertHits: now.hits - before.hits, ExpertMisses: now.misses - before.misses, BytesRead: now.read - before.read,
		MemoryLimitBytes: m.budget.limitBytes, PeakBytes: peakBytes(), Backend: m.backend.Name(),
		DraftTokens: a.drafted, AcceptedTokens: a.accepted,
		AttentionMillis: millis(a.times.attention), ExpertMillis: millis(a.times.experts),
		WaitMillis: millis(a.times.waiting), OtherMillis: millis(a.times.other),
	}
	if !a.prefilled.IsZero() {
		s.PrefillTokensPerSecond = rate(a.prefilledTokens, a.prefilled.Sub(a.began))
	}
	if !a.first.IsZero() {
		s.TimeToFirstTokenMillis = millis(a.first.Sub(a.began))
		s.TokensPerSecond = rate(a.taken-1, a.ended.Sub(a.first))
	}
	return s
}

// gpuStats are the counters that telemetry has names for.
func gpuStats(c metal.Counters) *telemetry.GPU {
	return &telemetry.GPU{
		Blocks: c.Blocks, FallenBack: c.Repeated, Experts: c.Experts,
		SetUpMillis: millis(c.SetUp), GPUMillis: millis(c.GPU), ScatterMillis: millis(c.Scatter), CommitMillis: millis(c.SetCommit),
	}
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

func rate(n int, d time.Duration) float64 {
	if n <= 0 || d <= 0 {
		return 0
	}
	return float64(n) / d.Seconds()
}
