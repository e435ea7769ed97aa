package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"

	"colibri/backend/chat"
	"colibri/backend/engine"
	"colibri/backend/telemetry"
	"colibri/backend/tokenizer"
)

// runOutput is the object that --json prints. Its names are a contract.
type runOutput struct {
	Text         string              `json:"text"`
	Thinking     string              `json:"thinking,omitempty"`
	IDs          []int32             `json:"ids"`
	PromptTokens int                 `json:"prompt_tokens"`
	FinishReason engine.FinishReason `json:"finish_reason"`
	Seed         int64               `json:"seed"`
	Stats        engine.Stats        `json:"stats"`
}

type runFlags struct {
	modelFlags
	prompt, idsPath, system string
	raw, asJSON, verbose    bool
	maxTokens               int
	sampling                engine.Sampling
	tracePath               string
}

func runCommand(ctx context.Context, args []string, out, notes io.Writer) (err error) {
	var f runFlags
	f.sampling = engine.DefaultSampling()
	flags := flag.NewFlagSet("run", flag.ContinueOnError)
	f.register(flags)
	flags.StringVar(&f.prompt, "prompt", "", "the question, `TEXT`")
	flags.StringVar(&f.idsPath, "ids", "", "token ids instead of text: a JSON `FILE` with a list")
	flags.BoolVar(&f.raw, "raw", false, "continue the prompt as it stands, without the chat template; control tokens in it count")
	flags.StringVar(&f.system, "system", "", "instructions that precede the conversation, `TEXT`")
	flags.IntVar(&f.maxTokens, "max-tokens", 0, "end after `N` tokens (default: the context)")
	flags.Float64Var(&f.sampling.Temperature, "temperature", f.sampling.Temperature, "0 always takes the likeliest token")
	flags.Float64Var(&f.sampling.TopP, "top-p", f.sampling.TopP, "keep the likeliest tokens of this probability together; 1: off")
	flags.IntVar(&f.sampling.TopK, "top-k", f.sampling.TopK, "keep the `K` likeliest tokens; 0: off")
	flags.Float64Var(&f.sampling.MinP, "min-p", f.sampling.MinP, "drop tokens below this share of the likeliest one; 0: off")
	flags.Int64Var(&f.sampling.Seed, "seed", f.sampling.Seed, "same seed, same settings, same text; -1: a fresh one")
	flags.StringVar(&f.tracePath, "trace", "", "write the routed experts of every token and layer to `FILE`, a JSON object a line")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object at the end instead of streaming text")
	flags.BoolVar(&f.verbose, "verbose", false, "print the figures of the answer and of the backend to stderr")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q; put the question into --prompt", rest[0])
	case (f.prompt == "") == (f.idsPath == ""):
		return usagef("give either --prompt TEXT or --ids FILE")
	case f.idsPath != "" && f.system != "":
		return usagef("--system shapes a text prompt; --ids is taken as it is, with --raw or without")
	case f.raw && f.system != "":
		return usagef("--system needs the chat template, which --raw leaves out")
	case f.maxTokens < 0:
		return usagef("--max-tokens must not be negative")
	}
	if err := f.sampling.Validate(); err != nil {
		return usageError{err.Error()}
	}
	model, err := f.load(ctx, notes)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	request, err := f.request(ctx, model)
	if err != nil {
		return err
	}
	if f.tracePath != "" {
		trace, err := newTraceFile(f.tracePath)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, trace.close()) }()
		request.Route = trace.route
	}
	return f.answer(ctx, model, request, out, notes)
}

// request turns the options into ids and rules for ending.
func (f *runFlags) request(ctx context.Context, model *engine.Model) (engine.Request, error) {
	request := engine.Request{MaxTokens: f.maxTokens, Sampling: f.sampling}
	if f.idsPath != "" {
		ids, err := readIDs(f.idsPath, model.Config().Vocabulary)
		request.Prompt = ids
		request.StopIDs = stopIDs(model)
		return request, err
	}
	tokens := model.Tokenizer()
	if tokens == nil {
		return request, fmt.Errorf("%s has no tokenizer.json, so it cannot read text; give token ids with --ids", f.dir)
	}
	dir, err := f.path(ctx)
	if err != nil {
		return request, err
	}
	if f.raw {
		request.Prompt, err = tokens.EncodeSegments([]tokenizer.Segment{{Text: f.prompt, Special: true}})
		request.StopIDs = stopIDs(model)
		return request, err
	}
	template, err := chat.LoadTemplate(dir, tokens, model.Config().EOS)
	if err != nil {
		return request, err
	}
	var messages []chat.Message
	if f.system != "" {
		messages = append(messages, chat.Message{Role: chat.System, Text: f.system})
	}
	messages = append(messages, chat.Message{Role: chat.User, Text: f.prompt})
	prompt, err := template.Prompt(messages, chat.Options{})
	request.Prompt, request.StopIDs = prompt.IDs, prompt.StopIDs
	request.ThinkingOpen, request.ThinkStartID, request.ThinkEndID = prompt.ThinkingOpen, prompt.ThinkStartID, prompt.ThinkEndID
	return request, err
}

// stopIDs are the ids that end a text which no template shaped.
func stopIDs(model *engine.Model) []int32 {
	ids := make([]int32, len(model.Config().EOS))
	for i, id := range model.Config().EOS {
		ids[i] = int32(id)
	}
	return ids
}

// answer generates and prints. What was generated before an interruption is kept and printed; only a fault is an error.
func (f *runFlags) answer(ctx context.Context, model *engine.Model, request engine.Request, out, notes io.Writer) (err error) {
	session, err := model.NewSession()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	var answer, thinking []byte
	result, err := session.Generate(ctx, request, func(p engine.Piece) error {
		if p.Notice != "" {
			fmt.Fprintln(notes, "note:", p.Notice)
		}
		if p.Thinking {
			thinking = append(thinking, p.Text...)
		} else {
			answer = append(answer, p.Text...)
		}
		if f.asJSON {
			return nil
		}
		to := out
		if p.Thinking {
			to = notes // stdout carries the answer alone
		}
		_, err := io.WriteString(to, p.Text)
		return err
	})
	if f.asJSON {
		if err != nil {
			return err
		}
		if result.IDs == nil {
			result.IDs = []int32{}
		}
		return json.NewEncoder(out).Encode(runOutput{
			Text: string(answer), Thinking: string(thinking), IDs: result.IDs,
			PromptTokens: result.PromptTokens, FinishReason: result.FinishReason, Seed: result.Seed, Stats: result.Stats,
		})
	}
	if model.Tokenizer() == nil {
		fmt.Fprint(out, result.IDs)
	}
	fmt.Fprintln(out)
	if f.verbose {
		printFigures(notes, &result, model.Stats().GPU)
	}
	return err
}

func printFigures(w io.Writer, r *engine.Result, gpu *telemetry.GPU) {
	s := r.Stats
	fmt.Fprintf(w, "%d prompt tokens (%d reused), %d answered, ended by %s, seed %d\n",
		r.PromptTokens, r.ReusedTokens, len(r.IDs), r.FinishReason, r.Seed)
	fmt.Fprintf(w, "prefill %.0f tok/s, decode %.1f tok/s, first token after %.0f ms\n",
		s.PrefillTokensPerSecond, s.TokensPerSecond, s.TimeToFirstTokenMillis)
	fmt.Fprintf(w, "time: attention %.0f ms, experts %.0f ms, waiting for disk %.0f ms, other %.0f ms\n",
		s.AttentionMillis, s.ExpertMillis, s.WaitMillis, s.OtherMillis)
	fmt.Fprintf(w, "experts: %d hits, %d misses, %s read; peak memory %s; backend %s\n",
		s.ExpertHits, s.ExpertMisses, formatBytes(int64(s.BytesRead)), formatBytes(s.PeakBytes), s.Backend)
	if gpu != nil {
		fmt.Fprintf(w, "GPU: %d expert blocks of %d experts, %d calls repeated on the CPU; set-up %.0f ms, GPU %.0f ms, scatter %.0f ms, residency set commits %.1f ms\n",
			gpu.Blocks, gpu.Experts, gpu.FallenBack, gpu.SetUpMillis, gpu.GPUMillis, gpu.ScatterMillis, gpu.CommitMillis)
	}
}

// traceFile writes one line a token and sparse layer.
type traceFile struct {
	file   *os.File
	buffer *bufio.Writer
	lines  *json.Encoder
	err    error
}

type traceLine struct {
	Token   int     `json:"token"`
	Layer   int     `json:"layer"`
	Experts []int32 `json:"experts"`
}

func newTraceFile(path string) (*traceFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	buffer := bufio.NewWriter(file)
	return &traceFile{file: file, buffer: buffer, lines: json.NewEncoder(buffer)}, nil
}

func (t *traceFile) route(position, layer int, experts []int32) {
	if t.err == nil {
		t.err = t.lines.Encode(traceLine{position, layer, experts})
	}
}

func (t *traceFile) close() error { return errors.Join(t.err, t.buffer.Flush(), t.file.Close()) }
