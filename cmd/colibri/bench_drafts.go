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

// benchTexts are questions to the bundled model about itself. They are those of 85 tried in whose answers no choice between two tokens is close: the
// likeliest is ahead by 0.14 or more in the logit everywhere, so that rounded activations and any processor's order of sums choose the same. The
// stories that it was trained on too choose among names that are equally likely.
var benchTexts = []string{"Who are you?", "What can you do?", "What is an expert?", "What is Colibri?", "Why are you so small?"}

// benchTextTokens is more than any of the answers has.
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
	questions, err := f.questions(ctx, models[0])
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
			answers, count, seconds, err := r.write(ctx, models[which], questions)
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

// write answers the questions, and counts the tokens after each first one and their time.
func (r *draftSpeed) write(ctx context.Context, model *engine.Model, questions []engine.Request) (answers [][]int32, tokens int, seconds float64, err error) {
	for _, question := range questions {
		result, err := generate(ctx, model, question)
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

// questions are the texts as a chat asks them; a model without a tokenizer gets random tokens.
func (f *benchFlags) questions(ctx context.Context, model *engine.Model) ([]engine.Request, error) {
	var requests []engine.Request
	for i, text := range benchTexts {
		if model.Tokenizer() == nil {
			requests = append(requests, engine.Request{Prompt: randomPrompt(8*(i+1), model.Config().Vocabulary), MaxTokens: benchTextTokens, Sampling: engine.Greedy()})
			continue
		}
		run := runFlags{modelFlags: f.modelFlags, prompt: text, maxTokens: benchTextTokens, sampling: engine.Greedy()}
		request, err := run.request(ctx, model)
		if err != nil {
			return nil, err
		}
		requests = append(requests, request)
	}
	return requests, nil
}
