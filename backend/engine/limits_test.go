package engine

import (
	"context"
	"slices"
	"strings"
	"testing"
)

func TestTheSameWordsAtAnyMemoryLimit(t *testing.T) {
	for _, name := range []string{"deepseek_v3", "olmoe"} {
		o := loadOracle(t, oracleDir(name))
		free := loadModel(t, oracleDir(name))
		base := free.budget.need.Total()
		all := free.budget.experts
		for _, share := range []float64{0.35, 0.5, 0.8, 1.3} {
			limit := base + int64(share*float64(all))
			m, err := Load(context.Background(), oracleDir(name), Options{Backend: "cpu", MemoryBytes: limit, Precise: true})
			if err != nil {
				t.Fatalf("%s at %.0f %%: %v", name, share*100, err)
			}
			got := generate(t, m, o.Prompt, len(o.Greedy))
			logits, _ := evaluate(t, m, o.Prompt)
			peak := m.Stats().PeakBytes
			if err := m.Close(); err != nil {
				t.Error(err)
			}
			if !slices.Equal(got, o.Greedy) {
				t.Errorf("%s at %.0f %% of the experts: %v", name, share*100, got)
			}
			if e := furthest(logits, o.tensors["logits"].data); e > tolerance {
				t.Errorf("%s at %.0f %% of the experts: logits differ by %.2g", name, share*100, e)
			}
			if peak > limit {
				t.Errorf("%s: the peak of %d bytes is above the limit of %d", name, peak, limit)
			}
		}
	}
}

func TestLimitsThatAreTooSmallAreRefusedWithTheArithmetic(t *testing.T) {
	for _, limit := range []int64{1, 1 << 20} {
		_, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "cpu", MemoryBytes: limit})
		if err == nil || !strings.Contains(err.Error(), "weights") || !strings.Contains(err.Error(), "limit") || strings.Contains(err.Error(), "\n") {
			t.Errorf("a limit of %d gives %v", limit, err)
		}
	}
}

func TestConversationsStayWithinTheLimit(t *testing.T) {
	dir := newCheckpoint(3, oddModels()["gqa"]).write(t)
	free := loadModel(t, dir)
	limit := free.budget.need.Total() + free.budget.experts + 2*free.budget.need.CacheBytes
	m := openModel(t, dir, Options{Backend: "cpu", MemoryBytes: limit})
	var err error
	var sessions []*Session
	for i := range 200 {
		s := newSession(t, m)
		sessions = append(sessions, s)
		if _, err = s.Generate(context.Background(), greedyRequest([]int32{1, 2, 3}, 2), func(Piece) error { return nil }); err != nil {
			if i < 2 {
				t.Errorf("conversation %d found no room: %v", i, err)
			}
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "no room to grow") {
		t.Errorf("200 conversations in %d bytes: %v", limit, err)
	}
	if s := m.Stats(); s.PeakBytes > limit {
		t.Errorf("the peak of %d bytes is above the limit of %d", s.PeakBytes, limit)
	}
	// The others still answer.
	if _, err := sessions[0].Generate(context.Background(), greedyRequest([]int32{1, 2, 3, 4}, 2), func(Piece) error { return nil }); err != nil {
		t.Errorf("after the refusal: %v", err)
	}
}
