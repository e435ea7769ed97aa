package engine

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/residency"
)

func TestUnknownBackends(t *testing.T) {
	if _, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "abacus"}); err == nil || !strings.Contains(err.Error(), "abacus") {
		t.Errorf("%v", err)
	}
}

func TestAutoSaysWhyItRunsOnTheCPU(t *testing.T) {
	openersMu.Lock()
	before := maps.Clone(openers) // on a Mac with the real one
	openersMu.Unlock()
	defer func() {
		openersMu.Lock()
		openers = before
		openersMu.Unlock()
	}()
	registerBackend("metal", func() (compute.Backend, error) { return nil, errors.New("there is no device") })
	m, err := Load(context.Background(), oracleDir("olmoe"), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if notices := strings.Join(m.Stats().Notices, " "); !strings.Contains(notices, "there is no device") {
		t.Errorf("the notices say %q", notices)
	}
	if _, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "metal"}); err == nil {
		t.Error("metal was asked for and something else was used")
	}
}

func TestLoadingReportsProgressAndCanBeCancelled(t *testing.T) {
	var last Progress
	m, err := Load(context.Background(), oracleDir("olmoe"), Options{Backend: "cpu", Progress: func(p Progress) {
		if p.DoneBytes < last.DoneBytes {
			t.Errorf("progress fell from %d to %d", last.DoneBytes, p.DoneBytes)
		}
		last = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last.DoneBytes == 0 || last.DoneBytes != last.TotalBytes {
		t.Errorf("loading ended at %d of %d bytes", last.DoneBytes, last.TotalBytes)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Load(ctx, oracleDir("olmoe"), Options{Backend: "cpu"}); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled load gives %v", err)
	}
}

// What was used is remembered beside the model, and added to.
func TestTheUsageHistoryIsKept(t *testing.T) {
	dir := newCheckpoint(3, oddModels()["gqa"]).write(t)
	var totals []uint64
	for range 2 {
		m, err := Load(context.Background(), dir, Options{Backend: "cpu", History: true})
		if err != nil {
			t.Fatal(err)
		}
		generate(t, m, []int32{1, 2, 3}, 10)
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		usage, notice := residency.ReadUsage(filepath.Join(dir, residency.UsageFile), residency.Shape{Layers: m.config.Layers, Experts: m.config.MoE.Experts}, m.config.Layers, m.config.Family)
		if notice != "" {
			t.Fatal(notice)
		}
		totals = append(totals, usage.Total())
	}
	// Three tokens of the prompt and nine of the answer were computed, each in every layer.
	if totals[0] == 0 || totals[1] != 2*totals[0] {
		t.Errorf("uses after one and two sessions: %v", totals)
	}
}
