package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A model of 3 sparse layers with 16 experts, 2 of which a token uses.
const tinyConfig = `{"model_type":"glm_moe_dsa","vocab_size":512,"hidden_size":64,"intermediate_size":128,"moe_intermediate_size":64,"num_hidden_layers":4,
"num_attention_heads":4,"num_key_value_heads":4,"q_lora_rank":32,"kv_lora_rank":32,"qk_nope_head_dim":16,"qk_rope_head_dim":8,"v_head_dim":16,
"n_routed_experts":16,"num_experts_per_tok":2,"n_shared_experts":1,"n_group":1,"topk_group":1,"norm_topk_prob":true,"routed_scaling_factor":2.5,
"first_k_dense_replace":1,"index_topk":512,"index_n_heads":4,"index_head_dim":16,"index_topk_freq":4,"index_skip_topk_offset":2,"max_position_embeddings":256,
"rms_norm_eps":1e-5,"rope_parameters":{"rope_type":"default","rope_theta":1000000},"tie_word_embeddings":false,"hidden_act":"silu"}`

func tinyModel(t *testing.T) string {
	t.Helper()
	config, dir := filepath.Join(t.TempDir(), "config.json"), filepath.Join(t.TempDir(), "tiny")
	if err := os.WriteFile(config, []byte(tinyConfig), 0o600); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "generate", dir, "--config", config)
	return dir
}

func TestBenchStreamMeasuresEveryLimit(t *testing.T) {
	dir := tinyModel(t)
	var hashes []string
	for _, guesses := range []string{"on", "off"} {
		var r streamReport
		out := mustRun(t, "bench", "--stream", "--model", dir, "--json", "--warm", "2", "--tokens", "10", "--guesses", guesses, "--readers", "2")
		if err := json.Unmarshal([]byte(out), &r); err != nil {
			t.Fatal(err)
		}
		if r.ExpertCount != 48 || r.Tokens != 10 || r.ComputeMillis <= 0 || r.ComputeFrom != "everything resident" || len(r.TokenHash) != 16 || len(r.Points) != 4 {
			t.Fatalf("guesses %s: %s", guesses, out)
		}
		hashes = append(hashes, r.TokenHash)
		for i, p := range r.Points {
			switch {
			case p.TokenHash != r.TokenHash || !p.ExactBytes:
				t.Errorf("%d bytes, guesses %s: tokens %s, with everything resident %s; exact %v", p.LimitBytes, guesses, p.TokenHash, r.TokenHash, p.ExactBytes)
			case p.PeakBytes > p.LimitBytes || p.WallMillis <= 0 || p.DiskBytesPerSecond <= 0 || p.RatioToSum <= 0 || p.RatioToLarger < p.RatioToSum:
				t.Errorf("guesses %s: %+v", guesses, p)
			case i > 0 && (p.LimitBytes <= r.Points[i-1].LimitBytes || p.Slots < r.Points[i-1].Slots):
				t.Errorf("limits do not grow: %+v after %+v", p, r.Points[i-1])
			case p.MissedBytes != 0 && p.ReadBytes == 0, guesses == "off" && p.GuessedReads != 0:
				t.Errorf("guesses %s: %+v", guesses, p)
			}
		}
		if least := r.Points[0]; least.Misses == 0 || least.MissedBytes < float64(r.RecordBytes) || least.WaitMillis <= 0 {
			t.Errorf("with room for %d of 48 experts nothing was missed: %+v", least.Slots, least)
		}
	}
	if len(slices.Compact(hashes)) != 1 {
		t.Errorf("tokens with and without guesses: %v", hashes)
	}
	// For people: a line for each limit, and a verdict.
	out := mustRun(t, "bench", "--stream", "--model", dir, "--warm", "2", "--tokens", "4", "--limits", "20MB")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); len(lines) != 5 || !strings.Contains(lines[4], "limit") {
		t.Errorf("%q", out)
	}
}

func TestBenchStreamRefusesWhatItCannotMeasure(t *testing.T) {
	for _, args := range [][]string{{"--tokens", "0"}, {"--guesses", "maybe"}, {"--limits", "much"}, {"--readers", "-1"}, {"extra"}} {
		if code, _, notes := colibri(t, append([]string{"bench", "--stream"}, args...)...); code != 2 || notes == "" {
			t.Errorf("%v: exit %d, %q", args, code, notes)
		}
	}
	dir := tinyModel(t)
	if code, _, notes := colibri(t, "bench", "--stream", "--model", dir, "--limits", "300kB"); code != 1 || !strings.Contains(notes, "limit") {
		t.Errorf("a limit that holds nothing: exit %d, %q", code, notes)
	}
	report := streamReport{TokenHash: "a", Points: []streamPoint{{LimitBytes: 1e6, TokenHash: "b", ExactBytes: true}, {LimitBytes: 2e6, TokenHash: "a"}}}
	if err := report.check(); err == nil || !strings.Contains(err.Error(), "1 MB are b, with everything resident a") || !strings.Contains(err.Error(), "under 2 MB are not the records") {
		t.Errorf("other tokens and other bytes: %v", err)
	}
}
