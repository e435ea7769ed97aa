package engine

import (
	"context"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

// Perplexity is compared with a sum over log-softmax, in float64, of logits that are themselves checked against transformers.
func TestPerplexity(t *testing.T) {
	o, m := loadOracle(t, oracleDir("qwen3_moe")), loadModel(t, oracleDir("qwen3_moe"))
	nats := func(row []float64, id int32) float64 {
		total := 0.0
		for _, l := range row {
			total += math.Exp(l)
		}
		return math.Log(total) - row[id]
	}
	v := m.config.Vocabulary
	want := 0.0
	for p := range o.Prompt[1:] {
		want += nats(o.tensors["logits"].data[p*v:][:v], o.Prompt[p+1])
	}
	got, err := m.Perplexity(context.Background(), o.Prompt, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.Tokens != len(o.Prompt)-1 || got.Windows != 1 || math.Abs(got.NatsTotal-want) > 1e-3 || math.Abs(math.Log(got.Perplexity)-want/float64(got.Tokens)) > 1e-4 {
		t.Errorf("%+v; the sum is %g", got, want)
	}

	// Longer than the context of 256: windows that overlap by half.
	ids := randomIDs(rand.New(rand.NewPCG(2, 2)), 500, v)
	want = 0
	for _, w := range [][3]int{{0, 256, 1}, {128, 384, 256}, {256, 500, 384}} {
		logits, _ := evaluate(t, m, ids[w[0]:w[1]])
		for p := w[2]; p < w[1]; p++ {
			want += nats(logits[(p-1-w[0])*v:][:v], ids[p])
		}
	}
	done := 0
	got, err = m.Perplexity(context.Background(), ids, func(n, total int) {
		if n <= done || total != len(ids) {
			t.Errorf("progress went from %d to %d of %d", done, n, total)
		}
		done = n
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Tokens != 499 || got.Windows != 3 || math.Abs(got.NatsTotal-want) > 1e-2 || done != 500 {
		t.Errorf("%+v, %d done; the sum is %g", got, done, want)
	}
	if _, err := m.Perplexity(context.Background(), ids[:1], nil); err == nil {
		t.Error("one token has a perplexity")
	}
}

func TestEvaluationRefusesWhatDoesNotFit(t *testing.T) {
	m := loadModel(t, oracleDir("qwen3_moe"))
	nothing := func(int, []float32) error { return nil }
	for name, ids := range map[string][]int32{"256": make([]int32, 257), "99999": {1, 99999}, "no ids": nil} {
		if err := m.Logits(context.Background(), ids, nil, nothing); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
