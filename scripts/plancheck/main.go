// Command plancheck compares what `colibri plan` predicts with what happens. Machines get slower and faster within minutes, so that each round
// measures the machine, predicts, and runs the models at once; what counts are the medians over the rounds:
//
//	go run ./scripts/plancheck [--rounds N] [--results FILE] [--stream DIR --limits A,B] DIR...
//
// The DIRs are models that fit into memory; --stream names one that is run under memory limits instead, below what it takes. With --results a later
// call adds rounds to those of earlier ones (and uses their trace, FILE.trace), for a machine that is not to be had for long. The program is build/bin/colibri (`make cli`).
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const program = "build/bin/colibri"

// figure is one comparison.
type figure struct {
	What      string  `json:"what"`
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"`
}

// plan, run and answer are what is read of the program's reports.
type plan struct {
	MemoryBytes float64 `json:"memory_bytes"`
	Speed       struct {
		Expected float64
	} `json:"tokens_per_second"`
	FirstWord struct {
		Low float64 // all experts in memory
	} `json:"first_word_seconds"`
}

type run struct {
	Model struct {
		PromptTokens           float64 `json:"prompt_tokens"`
		PrefillTokensPerSecond float64 `json:"prefill_tokens_per_second"`
		TokensPerSecond        float64 `json:"tokens_per_second"`
		PeakBytes              float64 `json:"peak_bytes"`
	} `json:"model"`
}

type answer struct {
	Stats struct {
		TokensPerSecond float64 `json:"tokens_per_second"`
		PeakBytes       float64 `json:"peak_bytes"`
	} `json:"stats"`
}

func main() {
	if err := check(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "plancheck:", err)
		os.Exit(1)
	}
}

func check(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("plancheck", flag.ContinueOnError)
	rounds := flags.Int("rounds", 5, "measurements of the machine and runs after each, `N`")
	results := flags.String("results", "", "add the figures to `FILE` and print the medians of all in it")
	stream := flags.String("stream", "", "`DIR` of a model that is run under limits")
	limits := flags.String("limits", "650MB,2.3GB", "its memory limits, in growing order")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *rounds < 1 || flags.NArg() == 0 && *stream == "" {
		return errors.New("give at least one round and one model's folder")
	}
	work, err := os.MkdirTemp("", "colibri-plancheck-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	figures, err := earlier(*results)
	if err != nil {
		return err
	}
	trace := filepath.Join(work, "trace")
	if *results != "" {
		trace = *results + ".trace"
	}
	for range *rounds {
		c := checker{machine: filepath.Join(work, "machine.json"), trace: trace}
		err := c.resident(flags.Args())
		if err == nil && *stream != "" {
			err = c.streaming(*stream, strings.Split(*limits, ","))
		}
		if err != nil {
			return err
		}
		figures = append(figures, c.figures...)
		if *results != "" {
			if err := keep(*results, figures); err != nil {
				return err
			}
		}
	}
	return report(out, figures)
}

func earlier(path string) (figures []figure, err error) {
	if path == "" {
		return nil, nil
	}
	content, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = json.Unmarshal(content, &figures)
	}
	return figures, err
}

func keep(path string, figures []figure) error {
	content, err := json.Marshal(figures)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// checker makes one round.
type checker struct {
	machine, trace string
	measured       bool
	figures        []figure
}

func (c *checker) add(what string, predicted, measured float64) {
	c.figures = append(c.figures, figure{what, predicted, measured})
}

// predict measures the machine the first time.
func (c *checker) predict(dir string, options ...string) (p plan, err error) {
	args := append([]string{"plan", "--json", "--machine", c.machine, "--container", dir}, options...)
	if !c.measured {
		args, c.measured = append(args, "--measure"), true
	}
	return p, colibri(&p, args...)
}

const promptTokens, decodedTokens = "512", "48"

func (c *checker) resident(dirs []string) error {
	for _, dir := range dirs {
		p, err := c.predict(dir, "--prompt", promptTokens, "--context", "640")
		if err != nil {
			return err
		}
		var r run
		if err := colibri(&r, "bench", "--json", "--parts", "model", "--rounds", "1", "--model", dir, "--prompt", promptTokens, "--decode", decodedTokens); err != nil {
			return err
		}
		name := strings.TrimSuffix(filepath.Base(dir), ".colibri")
		c.add(name+", decode, tok/s", p.Speed.Expected, r.Model.TokensPerSecond)
		c.add(name+", first word, s", p.FirstWord.Low, r.Model.PromptTokens/r.Model.PrefillTokensPerSecond)
		c.add(name+", memory, MB", p.MemoryBytes/1e6, r.Model.PeakBytes/1e6)
	}
	return nil
}

// An answer long enough that the filling of the cache at its beginning weighs little.
const streamedTokens = "160"

// streaming runs each limit in a process of its own: beside a model that is all in memory, as in bench --stream, this disk was found twice as fast.
func (c *checker) streaming(dir string, limits []string) error {
	if err := c.record(dir, "[11, 222, 3333, 444]", nil, "--trace", c.trace); err != nil {
		return err
	}
	for _, limit := range limits {
		p, err := c.predict(dir, "--memory", limit, "--trace", c.trace)
		if err != nil {
			return err
		}
		var r answer
		if err := c.record(dir, "[55, 666, 7777, 88]", &r, "--memory", limit); err != nil {
			return err
		}
		c.add("streaming under "+limit+", tok/s", p.Speed.Expected, r.Stats.TokensPerSecond)
		c.add("memory under "+limit+", MB", p.MemoryBytes/1e6, r.Stats.PeakBytes/1e6)
	}
	return nil
}

// record answers to token ids. A trace is made once, of another text than the one that is run.
func (c *checker) record(dir, prompt string, into any, options ...string) error {
	if _, err := os.Stat(c.trace); err == nil && into == nil {
		return nil
	}
	ids := c.trace + ".ids"
	if err := os.WriteFile(ids, []byte(prompt), 0o644); err != nil {
		return err
	}
	defer os.Remove(ids)
	return colibri(into, append([]string{"run", "--model", dir, "--ids", ids, "--raw", "--temperature", "0", "--max-tokens", streamedTokens, "--json"}, options...)...)
}

func colibri(into any, args ...string) error {
	c := exec.Command(program, args...)
	var notes bytes.Buffer
	c.Stderr = &notes
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("colibri %s: %w\n%s", strings.Join(args, " "), err, notes.String())
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(out, into)
}

func report(out io.Writer, figures []figure) error {
	var names []string
	predicted, measured := map[string][]float64{}, map[string][]float64{}
	for _, f := range figures {
		if predicted[f.What] == nil {
			names = append(names, f.What)
		}
		predicted[f.What] = append(predicted[f.What], f.Predicted)
		measured[f.What] = append(measured[f.What], f.Measured)
	}
	fmt.Fprintf(out, "%-44s %28s %28s %9s %14s\n", "median (least to greatest)", "predicted", "measured", "error", "of each round")
	for _, name := range names {
		errors := make([]float64, len(predicted[name]))
		for i := range errors {
			errors[i] = 100 * (predicted[name][i]/measured[name][i] - 1)
		}
		slices.Sort(errors)
		p, m := slices.Sorted(slices.Values(predicted[name])), slices.Sorted(slices.Values(measured[name]))
		if _, err := fmt.Fprintf(out, "%-44s %28s %28s %+7.0f %% %+12.0f %%\n", name, spread(p), spread(m), 100*(p[len(p)/2]/m[len(m)/2]-1), errors[len(errors)/2]); err != nil {
			return err
		}
	}
	return nil
}

func spread(sorted []float64) string {
	return fmt.Sprintf("%.3g (%.3g to %.3g)", sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1])
}
