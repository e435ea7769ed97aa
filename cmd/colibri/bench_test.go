package main

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestBenchMeasuresEveryPart(t *testing.T) {
	// The random prompt is shorter here than where its expected hash comes from: only the texts' tokens are compared.
	var expected expectedTokens
	content, err := os.ReadFile(filepath.Join("..", "..", "testdata", "bench-tokens.json"))
	if err := errors.Join(err, json.Unmarshal(content, &expected)); err != nil {
		t.Fatal(err)
	}
	texts := filepath.Join(t.TempDir(), "texts.json")
	if err := os.WriteFile(texts, []byte(`{"text":"`+expected.Text+`"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{"bench", "--json", "--parts", "model,drafts,start", "--rounds", "1", "--prompt", "12", "--decode", "4", "--expect", texts}
	var r benchReport
	if err := json.Unmarshal([]byte(mustRun(t, args...)), &r); err != nil {
		t.Fatal(err)
	}
	switch {
	case r.Model == nil || r.Model.PrefillTokensPerSecond <= 0 || r.Model.TokensPerSecond <= 0 || r.Model.PeakBytes <= 0 || len(r.Model.TokenHash) != 16:
		t.Errorf("the model: %+v", r.Model)
	case r.Drafts == nil || r.Drafts.Gain <= 0 || r.Drafts.Drafted == 0 || r.Drafts.Accepted == 0 || len(r.Drafts.TokenHash) != 16:
		t.Errorf("drafts: %+v", r.Drafts)
	case r.Start == nil || len(r.Start.TokenHash) != 16 || r.Start.FirstTokenMillis <= 0 || r.Start.EndMillis < r.Start.FirstTokenMillis:
		t.Errorf("the start: %+v", r.Start)
	}
	// What a token needs: everything resident but the embedding table, and 4 of each sparse layer's 32 experts.
	if r.Model != nil && (r.Model.WeightBytesPerToken < 5e6 || r.Model.WeightBytesPerToken > 20e6) {
		t.Errorf("a token of the bundled model reads %.0f bytes", r.Model.WeightBytesPerToken)
	}
}

func TestBenchFailsOnOtherTokens(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.json")
	if err := os.WriteFile(path, []byte(`{"text":"aaaa","random":{"cpu (AVX2)":"bbbb"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	model := func(backend, hash string) *modelSpeed { return &modelSpeed{Backend: backend, TokenHash: hash} }
	for _, c := range []struct {
		report benchReport
		fails  string
	}{
		{benchReport{Drafts: &draftSpeed{TokenHash: "aaaa"}, Model: model("cpu (AVX2)", "bbbb")}, ""},
		{benchReport{Drafts: &draftSpeed{TokenHash: "cccc"}, Model: model("cpu (AVX2)", "bbbb")}, "cccc, not aaaa"},
		{benchReport{Drafts: &draftSpeed{TokenHash: "aaaa"}, Model: model("cpu (AVX2)", "dddd")}, "dddd, not bbbb"},
		{benchReport{}, ""},
	} {
		err := c.report.compareTokens(path, io.Discard)
		if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	// What cannot be compared is said, not passed over.
	var notes strings.Builder
	if err := (&benchReport{Model: model("cpu (Abacus)", "eeee")}).compareTokens(path, &notes); err != nil || !strings.Contains(notes.String(), "Abacus") {
		t.Errorf("an unknown processor: %v, %q", err, notes.String())
	}
}
