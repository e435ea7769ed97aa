package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"colibri/backend/container"
	"colibri/backend/engine"
)

type modelSpeed struct {
	Dir                    string  `json:"model"`
	Backend                string  `json:"backend"`
	LoadMillis             float64 `json:"load_ms"`
	PromptTokens           int     `json:"prompt_tokens"`
	DecodedTokens          int     `json:"decoded_tokens"`
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
	TokensPerSecond        float64 `json:"tokens_per_second"`
	TokensPerSecondBehind  float64 `json:"tokens_per_second_behind_prompt"`
	WeightBytesPerToken    float64 `json:"weight_bytes_per_token"` // that one token of an answer multiplies with
	TokenHash              string  `json:"token_hash"`
	PeakBytes              int64   `json:"peak_bytes"`
}

// benchModel measures prefill of a random prompt, and greedy decode both behind it and from an empty cache, without drafts. Random tokens spread
// the routing over the experts, as long texts do. The first pass brings the experts into memory, or into the cache that the limit
// allows, and does not count.
func benchModel(ctx context.Context, f *benchFlags, notes io.Writer) (_ *modelSpeed, err error) {
	began := time.Now()
	f.drafts = engine.DraftsOff
	model, err := f.load(ctx, notes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	r := &modelSpeed{Dir: f.dir, Backend: model.Backend(), LoadMillis: float64(time.Since(began).Microseconds()) / 1e3,
		PromptTokens: f.prompt, DecodedTokens: f.decode}
	if r.WeightBytesPerToken, err = f.weightBytesPerToken(ctx); err != nil {
		return nil, err
	}
	prompt := randomPrompt(f.prompt, model.Config().Vocabulary)
	if _, err := greedy(ctx, model, prompt, 2); err != nil {
		return nil, err
	}
	var prefill, behind, empty []float64
	var tokens tokenHash
	for range f.rounds {
		long, err := greedy(ctx, model, prompt, f.decode)
		if err != nil {
			return nil, err
		}
		short, err := greedy(ctx, model, prompt[:1], f.decode)
		if err != nil {
			return nil, err
		}
		prefill = append(prefill, long.Stats.PrefillTokensPerSecond)
		behind = append(behind, long.Stats.TokensPerSecond)
		empty = append(empty, short.Stats.TokensPerSecond)
		r.PeakBytes = long.Stats.PeakBytes
		if err := tokens.round(long.IDs, short.IDs); err != nil {
			return nil, err
		}
	}
	r.PrefillTokensPerSecond, r.TokensPerSecondBehind, r.TokensPerSecond = middle(prefill), middle(behind), middle(empty)
	r.TokenHash = tokens.hex
	return r, nil
}

func (f *benchFlags) weightBytesPerToken(ctx context.Context) (float64, error) {
	dir, err := f.path(ctx)
	if err != nil {
		return 0, err
	}
	d, err := container.Describe(dir)
	if err != nil {
		return 0, err
	}
	return float64(d.MultipliedBytes()), nil
}

// randomPrompt is the same at every call. The second seed is that of 60 tried whose greedy answer of the bundled model, to 512
// tokens and to the first of them, has the fewest close choices (0.028 in the logit).
func randomPrompt(n, vocabulary int) []int32 {
	random := rand.New(rand.NewPCG(1, 50))
	prompt := make([]int32, n)
	for i := range prompt {
		prompt[i] = random.Int32N(int32(vocabulary))
	}
	return prompt
}

func greedy(ctx context.Context, model *engine.Model, prompt []int32, tokens int) (engine.Result, error) {
	return generate(ctx, model, engine.Request{Prompt: prompt, MaxTokens: tokens, Sampling: engine.Greedy()})
}

func generate(ctx context.Context, model *engine.Model, request engine.Request) (_ engine.Result, err error) {
	session, err := model.NewSession()
	if err != nil {
		return engine.Result{}, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	result, err := session.Generate(ctx, request, func(engine.Piece) error { return nil })
	if err == nil && result.FinishReason == engine.FinishCancelled {
		err = context.Cause(ctx)
	}
	return result, err
}

// tokenHash is the hash of a round's tokens, which must be the same in every round.
type tokenHash struct{ hex string }

func (t *tokenHash) round(answers ...[]int32) error {
	h := sha256.New()
	for _, ids := range answers {
		if err := binary.Write(h, binary.LittleEndian, ids); err != nil {
			return err
		}
	}
	sum := hex.EncodeToString(h.Sum(nil)[:8])
	if t.hex != "" && t.hex != sum {
		return fmt.Errorf("the tokens of two rounds differ (%s and %s): the computation depends on something that it must not depend on", t.hex, sum)
	}
	t.hex = sum
	return nil
}
