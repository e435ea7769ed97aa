package engine

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
)

// evaluatedGreedily is the greedy continuation by evaluating the whole text for every token.
func evaluatedGreedily(t *testing.T, m *Model, text []int32, n int) []int32 {
	t.Helper()
	text = slices.Clone(text)
	for range n {
		logits, _ := evaluate(t, m, text)
		last := logits[len(logits)-m.config.Vocabulary:]
		text = append(text, int32(slices.Index(last, slices.Max(last))))
	}
	return text[len(text)-n:]
}

// A model with an index head that is closed half of the time, whose selections are full of equal scores; with a prediction layer
// that is right now and then, because there are few tokens to choose from.
func tiedModel(t *testing.T) string {
	config := oddModels()["dsa"]
	config["index_n_heads"], config["index_topk"], config["num_nextn_predict_layers"], config["vocab_size"] = 1, 9, 1, 8
	return newCheckpoint(8, config).write(t)
}

// Answers are what evaluating the whole text gives, also where the indexer chose among equal scores: with and without drafts, when
// the conversation goes on, is edited, or comes back from the disk.
func TestEqualIndexScoresAreChosenAsInTheWholeText(t *testing.T) {
	dir := tiedModel(t)
	m := loadModel(t, dir)
	store := KVStore{Dir: t.TempDir()}
	random := rand.New(rand.NewPCG(3, 3))
	ties := 0
	for depth := range mostDrafts + 1 {
		m.pace = fixedPace(depth)
		s := newSession(t, m)
		text := randomIDs(random, 6+depth, m.config.Vocabulary)
		for turn := range 4 {
			// A token's experts are reported once, however often it is computed.
			reported := map[[2]int]int{}
			request := greedyRequest(text, 9)
			if depth == 0 {
				request.Route = func(position, layer int, _ []int32) { reported[[2]int{position, layer}]++ }
			}
			got, _ := ask(t, s, request)
			if want := evaluatedGreedily(t, m, text, 9); !slices.Equal(got.IDs, want) {
				t.Fatalf("depth %d, turn %d: %v, the whole text gives %v", depth, turn, got.IDs, want)
			}
			for at, times := range reported {
				if times != 1 {
					t.Errorf("turn %d: position %d of layer %d was reported %d times", turn, at[0], at[1], times)
				}
			}
			if s.tied != noTie {
				ties++
			}
			text = slices.Concat(text, got.IDs, randomIDs(random, 3, m.config.Vocabulary))
			switch turn {
			case 1:
				text[len(text)-15] ^= 1
			case 2:
				if err := s.SaveKV(context.Background(), store, "conversation"); err != nil {
					t.Fatal(err)
				}
				s = newSession(t, m)
				if _, err := s.LoadKV(context.Background(), store, "conversation"); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	if ties < 8 {
		t.Errorf("only %d of 16 answers met equal scores", ties)
	}
}

// A draft that is right counts only up to the first choice among equal scores: the rows after it belong to another text.
func TestDraftsEndWhereScoresAreEqual(t *testing.T) {
	m := loadModel(t, tiedModel(t))
	m.pace = fixedPace(mostDrafts)
	random := rand.New(rand.NewPCG(9, 9))
	for round := range 60 {
		prompt := randomIDs(random, 5+round%4, m.config.Vocabulary)
		got, _ := ask(t, newSession(t, m), greedyRequest(prompt, 8))
		if want := evaluatedGreedily(t, m, prompt, 8); !slices.Equal(got.IDs, want) {
			t.Fatalf("round %d: %v, the whole text gives %v", round, got.IDs, want)
		}
	}
}

// In a long text a row keeps the choice it made: computing it anew for every token would never end.
func TestLongTextsKeepTheirChoices(t *testing.T) {
	m := loadModel(t, tiedModel(t))
	s := newSession(t, m)
	prompt := randomIDs(rand.New(rand.NewPCG(6, 6)), mostTiedText, m.config.Vocabulary)
	ask(t, s, greedyRequest(prompt, 3))
	if s.tied == noTie {
		t.Fatal("no equal scores were met")
	}
	longer := slices.Concat(s.Tokens(), []int32{4, 5})
	if again, _ := ask(t, s, greedyRequest(longer, 2)); again.ReusedTokens != len(longer)-2 {
		t.Errorf("%d of %d tokens were reused", again.ReusedTokens, len(longer))
	}
}
