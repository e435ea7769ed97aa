package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"colibri/backend/bundled"
)

// colibri runs a command line in this process.
func colibri(t *testing.T, args ...string) (code int, out, notes string) {
	t.Helper()
	var o, n bytes.Buffer
	code = dispatch(context.Background(), args, &o, &n)
	return code, o.String(), n.String()
}

func mustRun(t *testing.T, args ...string) string {
	t.Helper()
	code, out, notes := colibri(t, args...)
	if code != 0 {
		t.Fatalf("colibri %s: exit %d, %s", strings.Join(args, " "), code, notes)
	}
	return out
}

func TestWrongUsageExitsWith2(t *testing.T) {
	for _, args := range [][]string{
		{}, {"fly"}, {"run"}, {"run", "--prompt", "a", "--ids", "b"}, {"run", "--prompt", "a", "extra"}, {"run", "--prompt", "a", "--top-p", "7"},
		{"run", "--prompt", "a", "--max-tokens", "-1"}, {"run", "--prompt", "a", "--memory", "lots"}, {"run", "--raw", "--system", "s", "--prompt", "a"},
		{"eval"}, {"eval", "--ids", "x"}, {"eval", "--ids", "x", "--logits", "y", "--text", "z"},
		{"convert", "only"}, {"convert", "a", "b", "--experts", "int5"}, {"inspect"}, {"generate", "x"}, {"plan"}, {"replay", "t"}, {"bench", "--rounds", "0"}, {"bench", "--parts", "wings"},
	} {
		if code, _, notes := colibri(t, args...); code != 2 || notes == "" {
			t.Errorf("colibri %v: exit %d, %q", args, code, notes)
		}
	}
}

func TestFailuresExitWith1AndOneSentence(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "nothing here")
	for _, args := range [][]string{
		{"run", "--model", missing, "--prompt", "a"}, {"inspect", missing}, {"convert", missing, missing + "2"},
		{"eval", "--text", missing}, {"run", "--ids", missing}, {"replay", missing, "--slots", "4"}, {"plan", "--machine", missing, "--container", missing},
		{"run", "--prompt", "a", "--memory", "2MB"}, {"run", "--prompt", "a", "--backend", "abacus"},
	} {
		code, _, notes := colibri(t, args...)
		if code != 1 || strings.Count(strings.TrimSpace(notes), "\n") != 0 || !strings.HasPrefix(notes, "colibri: ") {
			t.Errorf("colibri %v: exit %d, %q", args, code, notes)
		}
	}
}

// Token ids are continued as they are, --raw or not, up to a stop id: here the reference's greedy tokens.
func TestRunContinuesIDs(t *testing.T) {
	var reference struct{ Prompt, Greedy []int32 }
	for _, name := range []string{"glm_moe_dsa", "olmoe"} {
		dir := filepath.Join("../../testdata/oracles", name)
		text, err := os.ReadFile(filepath.Join(dir, "reference.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(text, &reference); err != nil {
			t.Fatal(err)
		}
		want := reference.Greedy
		if at := slices.Index(want, 1); at >= 0 { // the models' eos_token_id
			want = want[:at]
		}
		ids := filepath.Join(t.TempDir(), "ids.json")
		text, _ = json.Marshal(reference.Prompt)
		if err := os.WriteFile(ids, text, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, more := range [][]string{nil, {"--raw"}} {
			var got runOutput
			args := append([]string{"run", "--model", dir, "--ids", ids, "--max-tokens", "32", "--temperature", "0", "--json"}, more...)
			if err := json.Unmarshal([]byte(mustRun(t, args...)), &got); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got.IDs, want) {
				t.Errorf("%s: %v, want %v", name, got.IDs, want)
			}
		}
	}
}

func TestRunPrintsOneObject(t *testing.T) {
	args := []string{"run", "--prompt", "Tell me a short story about a cat.", "--seed", "7", "--max-tokens", "24", "--json"}
	var first runOutput
	if err := json.Unmarshal([]byte(mustRun(t, args...)), &first); err != nil {
		t.Fatal(err)
	}
	if len(first.IDs) != 24 || first.Text == "" || first.FinishReason != "length" || first.PromptTokens != 18 || first.Seed != 7 ||
		first.Stats.Backend == "" || first.Stats.TimeToFirstTokenMillis <= 0 {
		t.Errorf("%+v", first)
	}
	var raw map[string]any
	_ = json.Unmarshal([]byte(mustRun(t, args...)), &raw)
	stats := raw["stats"].(map[string]any)
	for _, name := range []string{"prefill_tokens_per_second", "tokens_per_second", "time_to_first_token_ms", "expert_hits", "expert_misses",
		"bytes_read", "memory_limit_bytes", "peak_bytes", "backend"} {
		if _, ok := stats[name]; !ok {
			t.Errorf("stats lack %s", name)
		}
	}
	if raw["text"] != first.Text {
		t.Errorf("the same seed gave %q and %q", raw["text"], first.Text)
	}
}

func TestTheWordsAreTheSameAtAnyMemoryLimit(t *testing.T) {
	words := func(memory string) []int32 {
		var r runOutput
		args := []string{"run", "--prompt", "What is a hummingbird?", "--temperature", "0", "--max-tokens", "32", "--json"}
		if memory != "" {
			args = append(args, "--memory", memory)
		}
		if err := json.Unmarshal([]byte(mustRun(t, args...)), &r); err != nil {
			t.Fatal(err)
		}
		return r.IDs
	}
	all := words("")
	for _, memory := range []string{"40MB", "32MB"} {
		if got := words(memory); !slices.Equal(got, all) {
			t.Errorf("with %s: %v, without a limit %v", memory, got, all)
		}
	}
}

func TestRunTraces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace")
	mustRun(t, "run", "--prompt", "Hello", "--temperature", "0", "--max-tokens", "4", "--trace", path)
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[[2]int]bool{}
	for line := range strings.Lines(string(content)) {
		var l traceLine
		if err := json.Unmarshal([]byte(line), &l); err != nil || len(l.Experts) != 4 || !slices.IsSorted(l.Experts) {
			t.Fatalf("%q: %v", line, err)
		}
		seen[[2]int{l.Token, l.Layer}] = true
	}
	for layer := 1; layer < 8; layer++ {
		if !seen[[2]int{0, layer}] {
			t.Errorf("no line for token 0, layer %d", layer)
		}
	}
	var r replayOutput
	if err := json.Unmarshal([]byte(mustRun(t, "replay", path, "--slots", "20", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Misses == 0 || r.Policies["belady"].Misses > r.Misses || r.Policies["lru"].Misses == 0 {
		t.Errorf("%+v", r)
	}
}

func TestEvalWritesLogits(t *testing.T) {
	dir := t.TempDir()
	ids, logits := filepath.Join(dir, "ids.json"), filepath.Join(dir, "logits.safetensors")
	if err := os.WriteFile(ids, []byte("[2,4,7,216,888]"), 0o644); err != nil {
		t.Fatal(err)
	}
	mustRun(t, "eval", "--ids", ids, "--logits", logits)
	content, err := os.ReadFile(logits)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(content)
	var header map[string]struct {
		DType string `json:"dtype"`
		Shape []int  `json:"shape"`
	}
	if err := json.Unmarshal(content[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	if h := header["logits"]; h.DType != "F32" || !slices.Equal(h.Shape, []int{5, 8192}) || len(content) != int(8+n)+5*8192*4 {
		t.Errorf("%+v, %d bytes", header, len(content))
	}
}

func TestConvertInspectAndPlan(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "Tiny.colibri")
	mustRun(t, "convert", "../../testdata/oracles/glm_moe_dsa", out, "--experts", "int4-g32", "--dense", "int8")
	var d map[string]any
	if err := json.Unmarshal([]byte(mustRun(t, "inspect", out, "--json")), &d); err != nil {
		t.Fatal(err)
	}
	if d["family"] != "glm_moe_dsa" || d["reads_per_expert"] != 1.0 {
		t.Errorf("%v", d)
	}
	machine := filepath.Join(dir, "machine.json")
	content := `{"name":"A Mac","memory_bytes":17179869184,"others_bytes":6000000000,"disk_bytes_per_second":5e9,
		"weight_bytes_per_second":8e10,"layer_seconds":2e-4,"ops_per_second":2e12}`
	if err := os.WriteFile(machine, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	var p planOutput
	if err := json.Unmarshal([]byte(mustRun(t, "plan", "--machine", machine, "--container", out, "--json")), &p); err != nil {
		t.Fatal(err)
	}
	if p.Slots != 3*16 || p.Speed.Low <= 0 || p.Speed.Low > p.Speed.High {
		t.Errorf("%+v", p)
	}
}

func TestPerplexityOfTheBundledModelOnItsOwnKindOfText(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	text := "Near a river bank lived a small cat. Everyone called this cat Rosa. One warm morning, Rosa went for a walk and met Lily the pony."
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if out := mustRun(t, "eval", "--text", path); !strings.HasPrefix(out, "perplexity ") {
		t.Errorf("%q", out)
	}
}

func TestDoctorNamesThisMachine(t *testing.T) {
	var r doctorReport
	if err := json.Unmarshal([]byte(mustRun(t, "doctor", "--json")), &r); err != nil {
		t.Fatal(err)
	}
	if r.Cores < 1 || r.Memory.TotalBytes == 0 || len(r.Backends) == 0 || r.Model == nil {
		t.Fatalf("%+v", r)
	}
	// Any machine that runs this test holds the bundled model: 7 layers of 32 experts.
	if r.Memory.BudgetBytes <= 0 || !r.Model.FitsWhole || r.Model.Experts != 224 || r.Model.ExpertsInMemory != 224 || r.Model.DiskBytesPerSecond <= 0 {
		t.Errorf("%+v, %+v", r.Memory, r.Model)
	}
}

// The bundled model is unpacked once for all tests, into a folder of their own.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "run" {
		main() // colibri bench starts this program anew
	}
	cache, err := os.MkdirTemp("", "colibri-test-")
	if err != nil {
		panic(err)
	}
	os.Setenv("XDG_CACHE_HOME", cache)
	os.Setenv("HOME", cache) // where the cache is derived from it
	if _, err := bundled.Path(context.Background()); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(cache)
	os.Exit(code)
}
