package engine

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"colibri/backend/container"
)

// Drafts change the speed only: same tokens, greedy and sampled, whatever is accepted, also after reuse and edits.
func TestDraftsDoNotChangeTheText(t *testing.T) {
	tied := oddModels()["mla groups, MTP"]
	tied["vocab_size"], tied["tie_word_embeddings"] = 4096, true // half of it for drafts, and half of the answers' tokens beyond that
	dirs := map[string]string{
		"bundled": bundledDir(t), "random": newCheckpoint(5, oddModels()["mla groups, MTP"]).write(t), "random, tied": newCheckpoint(6, tied).write(t),
	}
	for name, dir := range dirs {
		t.Run(name, func(t *testing.T) {
			plain, drafting := openModel(t, dir, Options{Drafts: DraftsOff}), openModel(t, dir, Options{})
			random := rand.New(rand.NewPCG(4, 4))
			accepted := 0
			for round := range 6 {
				sampling := Greedy()
				if round%2 == 1 {
					sampling = Sampling{Temperature: 0.8, TopP: 0.95, RepetitionPenalty: 1.1, PresencePenalty: 0.2, Seed: int64(round)}
				}
				prompt := randomIDs(random, 5+random.IntN(30), plain.config.Vocabulary)
				if name == "bundled" {
					var err error
					if prompt, err = plain.Tokenizer().Encode("The little cat went to the river and"); err != nil {
						t.Fatal(err)
					}
				}
				depth := 1 + round%mostDrafts
				drafting.pace = fixedPace(depth)
				a, b := newSession(t, plain), newSession(t, drafting)
				for turn := range 3 {
					request := Request{Prompt: prompt, MaxTokens: 40 + turn, Sampling: sampling}
					want, _ := ask(t, a, request)
					got, _ := ask(t, b, request)
					if !slices.Equal(got.IDs, want.IDs) || got.Text != want.Text || got.FinishReason != want.FinishReason {
						t.Fatalf("trial %d turn %d depth %d: %v with drafts, %v without", round, turn, depth, got.IDs, want.IDs)
					}
					if got.Stats.DraftTokens == 0 {
						t.Fatal("nothing was drafted")
					}
					// What is kept belongs to the text: nothing of drafts that were wrong.
					if held, text := b.Tokens(), slices.Concat(prompt, got.IDs); len(held) < len(text)-1 || !slices.Equal(held[:len(text)-1], text[:len(text)-1]) {
						t.Fatalf("the session holds %v of %v", held, text)
					}
					accepted += got.Stats.AcceptedTokens
					prompt = slices.Concat(prompt, want.IDs)
					if turn == 1 {
						prompt = slices.Concat(prompt[:len(prompt)-17], []int32{2, 3})
					}
				}
			}
			if name == "bundled" && accepted == 0 {
				t.Error("no draft of the bundled model was ever right")
			}
		})
	}
}

// Drafts choose among the first half of the vocabulary, with the logits that the whole head gives it, whatever its format.
func TestDraftsUseHalfOfTheHead(t *testing.T) {
	m := openModel(t, bundledDir(t), Options{Drafts: DraftsOff})
	random := rand.New(rand.NewPCG(7, 7))
	for _, name := range []string{"f32", "bf16", "f16", "int8", "int4", "int2", "int4-g64", "int3-g64", "fp8"} {
		encoding, err := container.ParseEncoding(name)
		if err != nil {
			t.Fatal(err)
		}
		const rows, columns = 4096, 192
		whole := container.Block{Encoding: encoding, Rows: rows, Columns: columns, Data: make([]byte, encoding.DataBytes(rows, columns)),
			Scales: make([]float32, encoding.ScaleCount(rows, columns))}
		for i := range whole.Data {
			whole.Data[i] = byte(random.IntN(0x3f)) // a finite number in every format
		}
		for i := range whole.Scales {
			whole.Scales[i] = random.Float32()
		}
		x, all, some := make([]float32, columns), make([]float32, rows), make([]float32, rows/2)
		for i := range x {
			x[i] = float32(random.NormFloat64())
		}
		half := draftHead(&whole)
		if half.Rows != rows/2 || int64(len(half.Data)) != encoding.DataBytes(rows/2, columns) || int64(len(half.Scales)) != encoding.ScaleCount(rows/2, columns) {
			t.Errorf("%s: %d rows, %d bytes, %d scales", name, half.Rows, len(half.Data), len(half.Scales))
		}
		if err := errors.Join(m.backend.Linear(&whole, x, all, 1), m.backend.Linear(&half, x, some, 1)); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(some, all[:rows/2]) {
			t.Errorf("%s: other logits than the whole head gives", name)
		}
		for _, rows := range []int{4095, 4096 + 128} { // small, or half of it not whole blocks
			whole.Rows = rows
			if kept := draftHead(&whole); kept.Rows != rows || len(kept.Data) != len(whole.Data) {
				t.Errorf("%s: %d of %d rows are kept", name, kept.Rows, rows)
			}
		}
	}
	drafting := openModel(t, bundledDir(t), Options{})
	drafting.pace = fixedPace(1)
	s := newSession(t, drafting)
	got, _ := ask(t, s, greedyRequest([]int32{5, 6, 7}, 4))
	if _, err := s.propose(t.Context(), got.IDs[len(got.IDs)-1], 2, func(logits []float32, _ int) (int32, error) {
		if len(logits) != drafting.config.Vocabulary/2 {
			t.Errorf("a draft chooses among %d tokens of %d", len(logits), drafting.config.Vocabulary)
		}
		return likeliest(logits)
	}); err != nil {
		t.Fatal(err)
	}
}

// fixedPace drafts depth tokens, and tries nothing else.
func fixedPace(depth int) *pace {
	p := &pace{least: depth, left: math.MaxInt}
	p.tried[depth] = trial{tokens: 1, time: 1}
	return p
}

// The pace settles on whichever depth takes the least time, drafting or not.
func TestPaceFindsTheFastestDepth(t *testing.T) {
	for want := range mostDrafts + 1 {
		p := newPace(DraftsMeasured)
		for range 2000 {
			depth := p.depth()
			// Every depth gives depth+1 tokens; the wanted one takes the least for each.
			cost := 10 * (depth + 1)
			if depth == want {
				cost = 9 * (depth + 1)
			}
			p.spent(depth, depth+1, time.Duration(cost))
		}
		if p.best() != want {
			t.Errorf("best is %d, not %d: %+v", p.best(), want, p.tried)
		}
		// It notices a change.
		for range 4000 {
			depth := p.depth()
			cost := 10 * (depth + 1)
			if depth == mostDrafts-want {
				cost = 7 * (depth + 1)
			}
			p.spent(depth, depth+1, time.Duration(cost))
		}
		if got := p.best(); got != mostDrafts-want {
			t.Errorf("after the change best is %d, not %d: %+v", got, mostDrafts-want, p.tried)
		}
	}
}
