package engine

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// Drafts change the speed only: same tokens, greedy and sampled, whatever is accepted, also after reuse and edits.
func TestDraftsDoNotChangeTheText(t *testing.T) {
	dirs := map[string]string{"bundled": bundledDir(t), "random": newCheckpoint(5, oddModels()["mla groups, MTP"]).write(t)}
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
