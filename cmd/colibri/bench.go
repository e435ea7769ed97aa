package main

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"colibri/backend/container"
	"colibri/backend/cpu"
	"colibri/backend/engine"
)

// benchReport is what colibri bench measures. Rates are medians of the rounds; every speed of a model carries the hash of the tokens
// it produced, so that a faster but different computation cannot pass for a faster one.
type benchReport struct {
	Machine       string        `json:"machine"`
	Threads       int           `json:"threads"`
	ReadBandwidth float64       `json:"read_bytes_per_second"`
	Kernels       []kernelSpeed `json:"kernels"`
	Model         *modelSpeed   `json:"model,omitempty"`
}

type kernelSpeed struct {
	Format         string  `json:"format"`
	Rows           int     `json:"rows"`
	Columns        int     `json:"columns"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	ShareOfMemory  float64 `json:"share_of_read_bandwidth"`
}

type modelSpeed struct {
	Dir                    string  `json:"model"`
	Backend                string  `json:"backend"`
	LoadMillis             float64 `json:"load_ms"`
	PromptTokens           int     `json:"prompt_tokens"`
	DecodedTokens          int     `json:"decoded_tokens"`
	PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
	TokensPerSecond        float64 `json:"tokens_per_second"`
	TokensPerSecondBehind  float64 `json:"tokens_per_second_behind_prompt"`
	TokenHash              string  `json:"token_hash"`
	PeakBytes              int64   `json:"peak_bytes"`
}

// Shapes are matrices larger than the last-level caches in total, of the sizes that decide: an expert's and a dense layer's of GLM-5.2.
var benchEncodings = []string{"int8-row", "int4-g64", "int4-row", "int2-row", "int3-g64", "fp8", "bf16", "f16", "f32"}

func benchCommand(ctx context.Context, args []string, out, notes io.Writer) (err error) {
	if slices.Contains(args, "--stream") || slices.Contains(args, "-stream") {
		return streamCommand(ctx, args, out, notes)
	}
	var m modelFlags
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Bool("stream", false, "measure a model under memory limits instead: see colibri bench --stream --help")
	m.register(flags)
	asJSON := flags.Bool("json", false, "print one JSON object")
	kernelsOnly := flags.Bool("kernels", false, "measure the kernels only, no model")
	modelOnly := flags.Bool("no-kernels", false, "measure the model only")
	prompt := flags.Int("prompt", 512, "`N` tokens of prompt")
	decode := flags.Int("decode", 128, "`N` tokens of answer")
	rounds := flags.Int("rounds", 3, "repeat `N` times and take the median")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case *prompt < 1 || *decode < 2 || *rounds < 1:
		return usagef("--prompt and --rounds must be at least 1, --decode at least 2")
	case *kernelsOnly && *modelOnly:
		return usagef("--kernels and --no-kernels leave nothing to measure")
	}
	report := benchReport{Machine: runtime.GOOS + "/" + runtime.GOARCH, Threads: runtime.NumCPU()}
	if !*modelOnly {
		if err := benchKernels(ctx, &report, *rounds); err != nil {
			return err
		}
	}
	if !*kernelsOnly {
		if report.Model, err = benchModel(ctx, &m, notes, *prompt, *decode, *rounds); err != nil {
			return err
		}
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(report)
	}
	return printBench(out, &report)
}

func benchKernels(ctx context.Context, report *benchReport, rounds int) (err error) {
	backend, err := cpu.New(runtime.NumCPU())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	report.Machine += ", " + backend.Name()
	if report.ReadBandwidth, err = median(rounds, backend.MeasureReadBandwidth); err != nil {
		return err
	}
	for _, name := range benchEncodings {
		encoding, err := container.ParseEncoding(name)
		if err != nil {
			return err
		}
		for _, shape := range [][2]int{{2048, 6144}, {6144, 2048}} {
			if err := ctx.Err(); err != nil {
				return err
			}
			rate, err := median(rounds, func() (float64, error) { return backend.KernelBandwidth(encoding, shape[0], shape[1]) })
			if err != nil {
				return err
			}
			report.Kernels = append(report.Kernels, kernelSpeed{encoding.String(), shape[0], shape[1], rate, rate / report.ReadBandwidth})
		}
	}
	return nil
}

// benchModel measures prefill of a random prompt, and greedy decode both behind it and from an empty cache. Random tokens spread the
// routing over the experts, as long texts do.
func benchModel(ctx context.Context, m *modelFlags, notes io.Writer, promptTokens, decodeTokens, rounds int) (_ *modelSpeed, err error) {
	began := time.Now()
	model, err := m.load(ctx, notes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	r := &modelSpeed{Dir: m.dir, Backend: model.Backend(), LoadMillis: float64(time.Since(began).Microseconds()) / 1e3,
		PromptTokens: promptTokens, DecodedTokens: decodeTokens}
	random := rand.New(rand.NewPCG(1, 2))
	prompt := make([]int32, promptTokens)
	for i := range prompt {
		prompt[i] = random.Int32N(int32(model.Config().Vocabulary))
	}
	var prefill, behind, empty []float64
	hash := sha256.New()
	for round := range rounds {
		long, err := measure(ctx, model, prompt, decodeTokens)
		if err != nil {
			return nil, err
		}
		short, err := measure(ctx, model, prompt[:1], decodeTokens)
		if err != nil {
			return nil, err
		}
		prefill = append(prefill, long.Stats.PrefillTokensPerSecond)
		behind = append(behind, long.Stats.TokensPerSecond)
		empty = append(empty, short.Stats.TokensPerSecond)
		r.PeakBytes = long.Stats.PeakBytes
		if round == 0 {
			binary.Write(hash, binary.LittleEndian, long.IDs)
			binary.Write(hash, binary.LittleEndian, short.IDs)
		}
	}
	r.PrefillTokensPerSecond, r.TokensPerSecondBehind, r.TokensPerSecond = middle(prefill), middle(behind), middle(empty)
	r.TokenHash = hex.EncodeToString(hash.Sum(nil)[:8])
	return r, nil
}

func measure(ctx context.Context, model *engine.Model, prompt []int32, decodeTokens int) (_ engine.Result, err error) {
	session, err := model.NewSession()
	if err != nil {
		return engine.Result{}, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	result, err := session.Generate(ctx, engine.Request{Prompt: prompt, MaxTokens: decodeTokens, Sampling: engine.Greedy()},
		func(engine.Piece) error { return nil })
	if err == nil && result.FinishReason == engine.FinishCancelled {
		err = context.Cause(ctx)
	}
	return result, err
}

// median measures n times.
func median(n int, measure func() (float64, error)) (float64, error) {
	values := make([]float64, n)
	for i := range values {
		var err error
		if values[i], err = measure(); err != nil {
			return 0, err
		}
	}
	return middle(values), nil
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}

func printBench(out io.Writer, r *benchReport) error {
	fmt.Fprintf(out, "%s, %d threads\n", r.Machine, r.Threads)
	if r.ReadBandwidth > 0 {
		fmt.Fprintf(out, "memory read %.1f GB/s\n", r.ReadBandwidth/1e9)
	}
	for _, k := range r.Kernels {
		fmt.Fprintf(out, "  %-14s %5d x %-5d %6.1f GB/s  %3.0f %% of memory\n", k.Format, k.Rows, k.Columns, k.BytesPerSecond/1e9, 100*k.ShareOfMemory)
	}
	if s := r.Model; s != nil {
		fmt.Fprintf(out, "model loaded in %.0f ms on %s\n", s.LoadMillis, s.Backend)
		fmt.Fprintf(out, "prefill of %d tokens: %.0f tok/s\n", s.PromptTokens, s.PrefillTokensPerSecond)
		fmt.Fprintf(out, "decode of %d tokens: %.1f tok/s in an empty cache, %.1f behind the prompt\n", s.DecodedTokens, s.TokensPerSecond, s.TokensPerSecondBehind)
		fmt.Fprintf(out, "tokens %s, peak memory %s\n", s.TokenHash, formatBytes(s.PeakBytes))
	}
	return nil
}
