package engine

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"

	"colibri/backend/compute"
)

func TestCancellationKeepsWhatWasGenerated(t *testing.T) {
	o := loadOracle(t, oracleDir("deepseek_v3"))
	m, hooked := loadHooked(t, oracleDir("deepseek_v3"), 1, Options{})
	layers := m.config.Layers
	for _, at := range []int{0, 2, layers, 5*layers + 1, 9 * layers} {
		s := newSession(t, m)
		ctx, cancel := context.WithCancel(context.Background())
		count := 0
		hooked.layer = func(*compute.LayerCall) error {
			if count == at {
				cancel()
			}
			count++
			return nil
		}
		r, err := s.Generate(ctx, greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
		hooked.layer = nil
		cancel()
		if err != nil || r.FinishReason != FinishCancelled {
			t.Errorf("cancelled in layer %d: %q, %v", at, r.FinishReason, err)
		}
		if !slices.Equal(r.IDs, o.Greedy[:len(r.IDs)]) || len(r.IDs) < at/layers-1 || len(r.IDs) > at/layers+1 {
			t.Errorf("cancelled in layer %d: %v", at, r.IDs)
		}
		// The session goes on as if nothing had happened.
		if again, _ := ask(t, s, greedyRequest(o.Prompt, 32)); !slices.Equal(again.IDs, o.Greedy) {
			t.Errorf("after a cancellation in layer %d: %v", at, again.IDs)
		}
	}
	s := newSession(t, m)
	gone := errors.New("the window is gone")
	n := 0
	r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error {
		if n++; n == 4 {
			return gone
		}
		return nil
	})
	if !errors.Is(err, gone) || r.FinishReason != FinishError || len(r.IDs) != 4 {
		t.Errorf("a failing emit gives %v, %q, %d tokens", err, r.FinishReason, len(r.IDs))
	}
}

func TestNumbersThatAreNoneEndAnAnswerAndAreTraced(t *testing.T) {
	o := loadOracle(t, oracleDir("glm4_moe"))
	m, hooked := loadHooked(t, oracleDir("glm4_moe"), 1, Options{})
	for _, value := range []float32{float32(math.NaN()), float32(math.Inf(1))} {
		s := newSession(t, m)
		hooked.layer = func(call *compute.LayerCall) error {
			if call.Index == 2 && call.Rows[0].Position == len(o.Prompt)+3 {
				call.X[17] = value
			}
			return nil
		}
		r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
		hooked.layer = nil
		var number *NumberError
		if !errors.As(err, &number) || number.Layer != 2 || number.Position != len(o.Prompt)+3 {
			t.Errorf("%v in layer 2 gives %v", value, err)
		}
		if !slices.Equal(r.IDs, o.Greedy[:4]) || r.FinishReason != FinishError {
			t.Errorf("the answer so far: %v, %q", r.IDs, r.FinishReason)
		}
		if again, _ := ask(t, s, greedyRequest(o.Prompt, 32)); !slices.Equal(again.IDs, o.Greedy) {
			t.Errorf("after the fault: %v", again.IDs)
		}
	}
}

func TestBackendErrorsEndAnAnswer(t *testing.T) {
	o := loadOracle(t, oracleDir("glm4_moe"))
	m, hooked := loadHooked(t, oracleDir("glm4_moe"), 1, Options{})
	fault := errors.New("the processor is on fire")
	n := 0
	hooked.layer = func(call *compute.LayerCall) error {
		if call.CachesOnly {
			return nil
		}
		if n++; n > 3*m.config.Layers {
			return fault
		}
		return nil
	}
	r, err := newSession(t, m).Generate(context.Background(), greedyRequest(o.Prompt, 32), func(Piece) error { return nil })
	if !errors.Is(err, fault) || len(r.IDs) != 3 {
		t.Errorf("%v after %d tokens", err, len(r.IDs))
	}
}

func TestClosingAModelEndsItsAnswers(t *testing.T) {
	o := loadOracle(t, oracleDir("deepseek_v3"))
	m, err := Load(context.Background(), oracleDir("deepseek_v3"), Options{Backend: "cpu"})
	if err != nil {
		t.Fatal(err)
	}
	s, err := m.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	begun, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		r, err := s.Generate(context.Background(), greedyRequest(o.Prompt, 200), func(Piece) error {
			if first {
				close(begun)
				first = false
			}
			return nil
		})
		if len(r.IDs) == 0 || r.FinishReason != FinishError && r.FinishReason != FinishLength && r.FinishReason != FinishContext {
			t.Errorf("%d tokens, %q", len(r.IDs), r.FinishReason)
		}
		ended <- err
	}()
	<-begun
	if err := m.Close(); err != nil {
		t.Errorf("closing: %v", err)
	}
	if err := <-ended; err != nil && !errors.Is(err, errClosed) {
		t.Errorf("the answer ended with %v", err)
	}
	if _, err := m.NewSession(); !errors.Is(err, errClosed) {
		t.Errorf("a closed model begins a conversation: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}
