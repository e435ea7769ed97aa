package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// benchReport is what colibri bench measures. Rates are medians of the rounds; every speed of a model carries the hash of the tokens
// it produced, so that a faster but different computation cannot pass for a faster one.
type benchReport struct {
	Machine       string        `json:"machine"`
	Threads       int           `json:"threads"`
	ReadBandwidth float64       `json:"read_bytes_per_second,omitempty"`
	Kernels       []kernelSpeed `json:"kernels,omitempty"`
	Model         *modelSpeed   `json:"model,omitempty"`
	Drafts        *draftSpeed   `json:"drafts,omitempty"`
	Start         *startSpeed   `json:"start,omitempty"`
}

// benchParts are what can be measured, in this order.
var benchParts = []string{"kernels", "model", "drafts", "start"}

type benchFlags struct {
	modelFlags
	parts                  []string
	prompt, decode, rounds int
	expectPath             string
	asJSON                 bool
}

func (f *benchFlags) wants(part string) bool { return slices.Contains(f.parts, part) }

func benchCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	if slices.Contains(args, "--stream") || slices.Contains(args, "-stream") {
		return streamCommand(ctx, args, out, notes)
	}
	var f benchFlags
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.Bool("stream", false, "measure a model under memory limits instead: see colibri bench --stream --help")
	f.register(flags)
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object")
	parts := flags.String("parts", strings.Join(benchParts, ","), "what to measure, a `LIST` of these")
	flags.IntVar(&f.prompt, "prompt", 512, "`N` tokens of prompt")
	flags.IntVar(&f.decode, "decode", 128, "`N` tokens of answer")
	flags.IntVar(&f.rounds, "rounds", 3, "repeat `N` times and take the median")
	flags.StringVar(&f.expectPath, "expect", "", "fail if the tokens are not those of `FILE`, whatever the speed")
	rest, err := parse(flags, args, notes)
	f.parts = strings.Split(*parts, ",")
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case f.prompt < 1 || f.decode < 2 || f.rounds < 1:
		return usagef("--prompt and --rounds must be at least 1, --decode at least 2")
	}
	for _, part := range f.parts {
		if !slices.Contains(benchParts, part) {
			return usagef("--parts: there is no part %q; use %s", part, strings.Join(benchParts, ", "))
		}
	}
	report := benchReport{Machine: runtime.GOOS + "/" + runtime.GOARCH, Threads: runtime.NumCPU()}
	if err := f.measure(ctx, &report, notes); err != nil {
		return err
	}
	if f.asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		report.print(out)
	}
	if err == nil && f.expectPath != "" {
		err = report.compareTokens(f.expectPath, notes)
	}
	return err
}

func (f *benchFlags) measure(ctx context.Context, report *benchReport, notes io.Writer) (err error) {
	if f.wants("kernels") {
		if err := benchKernels(ctx, report, f.rounds); err != nil {
			return err
		}
	}
	if f.wants("model") {
		if report.Model, err = benchModel(ctx, f, notes); err != nil {
			return err
		}
	}
	if f.wants("drafts") {
		if report.Drafts, err = benchDrafts(ctx, f, notes); err != nil {
			return err
		}
	}
	if f.wants("start") {
		if report.Start, err = benchStart(ctx, f); err != nil {
			return err
		}
	}
	return nil
}

// expectedTokens are the token hashes that --expect checks. A text's are the same on every processor, because its prompts are such
// that no choice is close (see benchTexts); random tokens have close choices, so that their hash is one of an instruction set.
type expectedTokens struct {
	Text   string            `json:"text"`
	Random map[string]string `json:"random"` // by backend, as "cpu (AVX2)"
}

func (r *benchReport) compareTokens(path string, notes io.Writer) error {
	content, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var want expectedTokens
	if err := json.Unmarshal(content, &want); err != nil {
		return fmt.Errorf("%s holds no token hashes: %w", path, err)
	}
	if d := r.Drafts; d != nil && d.TokenHash != want.Text {
		return fmt.Errorf("the texts' tokens are %s, not %s: what is computed has changed (%s)", d.TokenHash, want.Text, path)
	}
	if m := r.Model; m != nil {
		hash, known := want.Random[m.Backend]
		switch {
		case !known:
			fmt.Fprintf(notes, "note: %s has no hash for %s; the random tokens' %s was not compared\n", path, m.Backend, m.TokenHash)
		case hash != m.TokenHash:
			return fmt.Errorf("the random prompt's tokens are %s, not %s: what is computed has changed (%s)", m.TokenHash, hash, path)
		}
	}
	return nil
}

func (r *benchReport) print(out io.Writer) {
	fmt.Fprintf(out, "%s, %d threads\n", r.Machine, r.Threads)
	if r.ReadBandwidth > 0 {
		fmt.Fprintf(out, "memory read %.1f GB/s\n", r.ReadBandwidth/1e9)
	}
	for _, k := range r.Kernels {
		fmt.Fprintf(out, "  %-14s %5d x %-5d %6.1f GB/s  %3.0f %% of memory\n", k.Format, k.Rows, k.Columns, k.BytesPerSecond/1e9, 100*k.ShareOfMemory)
	}
	if m := r.Model; m != nil {
		fmt.Fprintf(out, "model loaded in %.0f ms on %s, no drafts\n", m.LoadMillis, m.Backend)
		fmt.Fprintf(out, "prefill of %d tokens: %.0f tok/s\n", m.PromptTokens, m.PrefillTokensPerSecond)
		fmt.Fprintf(out, "decode of %d tokens: %.1f tok/s in an empty cache, %.1f behind the prompt\n", m.DecodedTokens, m.TokensPerSecond, m.TokensPerSecondBehind)
		rate := m.TokensPerSecond * m.WeightBytesPerToken
		fmt.Fprintf(out, "%s of weights a token: %.1f GB/s", formatBytes(int64(m.WeightBytesPerToken)), rate/1e9)
		if r.ReadBandwidth > 0 {
			fmt.Fprintf(out, ", %.0f %% of memory", 100*rate/r.ReadBandwidth)
		}
		fmt.Fprintln(out)
		fmt.Fprintf(out, "tokens %s, peak memory %s\n", m.TokenHash, formatBytes(m.PeakBytes))
	}
	if d := r.Drafts; d != nil {
		fmt.Fprintf(out, "drafts: %.1f tok/s without, %.1f with (%.2f x); %d of %d drafts right; %d tokens %s\n", d.TokensPerSecondWithout,
			d.TokensPerSecondWith, d.Gain, d.Accepted, d.Drafted, d.Tokens, d.TokenHash)
	}
	if s := r.Start; s != nil {
		fmt.Fprintf(out, "start: first token %.0f ms after the process began, end after %.0f ms; text %s\n", s.FirstTokenMillis, s.EndMillis, s.TokenHash)
	}
}
