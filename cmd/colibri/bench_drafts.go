package main

import (
	"context"
	"errors"
	"io"
	"slices"

	"colibri/backend/engine"
)

// draftSpeed compares greedy answers with and without drafts of the model's own prediction layer. The program measures by itself
// how many drafts pay, none included.
type draftSpeed struct {
	TokensPerSecondWithout float64 `json:"tokens_per_second_without"`
	TokensPerSecondWith    float64 `json:"tokens_per_second_with"`
	Gain                   float64 `json:"gain"`
	Drafted                int     `json:"drafted"`
	Accepted               int     `json:"accepted"`
	Tokens                 int     `json:"tokens"`
	TokenHash              string  `json:"token_hash"` // of the texts, which both must write
}

// benchTexts begin stories for the bundled model. They are those of 144 tried in whose answers no choice between two tokens is close:
// the likeliest is ahead by 0.07 or more in the logit everywhere, hundreds of times what instruction sets differ by.
var benchTexts = []string{
	"In a small village lived a kind teacher.",
	"One day a little girl.",
	"One day two brothers who",
	"On a sunny morning two brothers who",
}

// benchTextTokens is the length for which the above was seen.
const benchTextTokens = 128

// benchDrafts writes the texts alternately with and without drafts.
func benchDrafts(ctx context.Context, f *benchFlags, notes io.Writer) (_ *draftSpeed, err error) {
	var models [2]*engine.Model
	for i, mode := range []engine.DraftMode{engine.DraftsOff, engine.DraftsMeasured} {
		f.drafts = mode
		model, err := f.load(ctx, notes)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, model.Close()) }()
		models[i] = model
	}
	if models[1].Config().MTPLayers == 0 {
		return nil, nil
	}
	prompts, err := textPrompts(models[0])
	if err != nil {
		return nil, err
	}
	r := &draftSpeed{}
	var tokens tokenHash
	var rates [2][]float64
	// The first round warms up: it brings the experts into memory and finds the depth that pays.
	for round := range f.rounds + 1 {
		order := []int{0, 1}
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, which := range order {
			answers, count, seconds, err := r.write(ctx, models[which], prompts)
			if err != nil {
				return nil, err
			}
			if err := tokens.round(answers...); err != nil {
				return nil, err
			}
			if r.Tokens = count; round > 0 {
				rates[which] = append(rates[which], float64(count)/seconds)
			}
		}
	}
	r.TokensPerSecondWithout, r.TokensPerSecondWith, r.TokenHash = middle(rates[0]), middle(rates[1]), tokens.hex
	r.Gain = r.TokensPerSecondWith / r.TokensPerSecondWithout
	return r, nil
}

// write answers the prompts, and counts the tokens after each first one and their time.
func (r *draftSpeed) write(ctx context.Context, model *engine.Model, prompts [][]int32) (answers [][]int32, tokens int, seconds float64, err error) {
	for _, prompt := range prompts {
		result, err := greedy(ctx, model, prompt, benchTextTokens)
		if err != nil {
			return nil, 0, 0, err
		}
		answers = append(answers, result.IDs)
		if n := len(result.IDs) - 1; n > 0 {
			tokens += n
			seconds += float64(n) / result.Stats.TokensPerSecond
		}
		r.Drafted += result.Stats.DraftTokens
		r.Accepted += result.Stats.AcceptedTokens
	}
	return answers, tokens, seconds, nil
}

// textPrompts are the texts as tokens; a model without a tokenizer gets random ones.
func textPrompts(model *engine.Model) ([][]int32, error) {
	var prompts [][]int32
	for i, text := range benchTexts {
		if model.Tokenizer() == nil {
			prompts = append(prompts, randomPrompt(8*(i+1), model.Config().Vocabulary))
			continue
		}
		ids, err := model.Tokenizer().Encode(text)
		if err != nil {
			return nil, err
		}
		prompts = append(prompts, ids)
	}
	return prompts, nil
}
