// Command compare measures two contenders in one run, in alternating order, so that a machine that gets slower or faster meanwhile does
// so for both:
//
//	go run ./scripts/compare REVISION REVISION [--rounds N] [-- BENCH OPTIONS]
//	go run ./scripts/compare --a "OPTIONS" --b "OPTIONS" [REVISION] [--rounds N] [-- BENCH OPTIONS]
//
// A revision is whatever git names, or "." for the working tree; each is built in a folder of its own. The second form compares two
// settings of one revision, such as --a "--memory 600MB" --b "--memory 1GB". It prints median, least and greatest of every figure
// that `colibri bench --json` reports, and fails if the two produced different tokens.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// contender is one program with its options, and what its runs reported by figure.
type contender struct {
	name    string
	program string
	options []string
	figures map[string][]float64
	hashes  map[string]string
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "compare:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	flags := flag.NewFlagSet("compare", flag.ContinueOnError)
	rounds := flags.Int("rounds", 5, "runs of each, `N`")
	a := flags.String("a", "", "`OPTIONS` of colibri bench for the first")
	b := flags.String("b", "", "`OPTIONS` of colibri bench for the second")
	var bench, revisions []string
	if at := slices.Index(args, "--"); at >= 0 {
		args, bench = args[:at], args[at+1:]
	}
	for len(args) > 0 {
		if err := flags.Parse(args); err != nil {
			return err
		}
		if args = flags.Args(); len(args) > 0 {
			revisions, args = append(revisions, args[0]), args[1:]
		}
	}
	settings := *a != "" || *b != ""
	if settings && len(revisions) == 0 {
		revisions = []string{"."}
	}
	if settings && len(revisions) == 1 {
		revisions = append(revisions, revisions[0])
	}
	if len(revisions) != 2 || *rounds < 1 {
		return errors.New("give two revisions, or --a and --b and at most one revision, and at least one round")
	}
	work, err := os.MkdirTemp("", "colibri-compare-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	built := map[string]string{}
	var contenders []*contender
	for i, revision := range revisions {
		program, ok := built[revision]
		if !ok {
			if program, err = build(revision, filepath.Join(work, strconv.Itoa(i))); err != nil {
				return err
			}
			built[revision] = program
		}
		options := strings.Fields([]string{*a, *b}[i])
		contenders = append(contenders, &contender{name: strings.TrimSpace(revision + " " + strings.Join(options, " ")), program: program,
			options: slices.Concat(bench, options), figures: map[string][]float64{}, hashes: map[string]string{}})
	}
	if err := takeTurns(contenders, *rounds); err != nil {
		return err
	}
	return report(os.Stdout, contenders[0], contenders[1])
}

// takeTurns measures all in each round, every second one from the last to the first.
func takeTurns(contenders []*contender, rounds int) error {
	for round := range rounds {
		order := slices.Clone(contenders)
		if round%2 == 1 {
			slices.Reverse(order)
		}
		for _, c := range order {
			if err := c.measure(); err != nil {
				return err
			}
		}
	}
	return nil
}

// build compiles a revision's command line. What git does not know, such as a half-made change, is not in it; "." is the
// working tree as it stands.
func build(revision, dir string) (program string, err error) {
	source := "."
	if revision != "." {
		source = filepath.Join(dir, "source")
		if err := os.MkdirAll(source, 0o755); err != nil {
			return "", err
		}
		archive := filepath.Join(dir, "source.tar")
		if err := command("", "git", "archive", "-o", archive, revision); err != nil {
			return "", err
		}
		if err := command("", "tar", "-xf", archive, "-C", source); err != nil {
			return "", err
		}
	}
	program, err = filepath.Abs(filepath.Join(dir, "colibri"))
	if err != nil {
		return "", err
	}
	return program, command(source, "go", "build", "-trimpath", "-o", program, "./cmd/colibri") // without paths, the next comparison finds it built
}

func command(dir, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Dir, c.Stderr = dir, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return nil
}

func (c *contender) measure() error {
	run := exec.Command(c.program, slices.Concat([]string{"bench", "--json", "--rounds", "1"}, c.options)...)
	run.Stderr = os.Stderr
	out, err := run.Output()
	if err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	var tree any
	if err := json.Unmarshal(out, &tree); err != nil {
		return fmt.Errorf("%s: %w", c.name, err)
	}
	return c.collect("", tree)
}

// collect flattens a report: figures by path, and hashes, which every run must repeat.
func (c *contender) collect(path string, node any) error {
	switch v := node.(type) {
	case map[string]any:
		if format, ok := v["format"]; ok {
			path += fmt.Sprintf(" %v %vx%v", format, v["rows"], v["columns"])
		}
		for key, child := range v {
			if err := c.collect(strings.TrimSpace(path+" "+key), child); err != nil {
				return err
			}
		}
	case []any:
		for _, child := range v {
			if err := c.collect(path, child); err != nil {
				return err
			}
		}
	case float64:
		c.figures[path] = append(c.figures[path], v)
	case string:
		if !strings.HasSuffix(path, "hash") {
			return nil
		}
		if before, ok := c.hashes[path]; ok && before != v {
			return fmt.Errorf("%s: two runs gave different tokens (%s: %s and %s)", c.name, path, before, v)
		}
		c.hashes[path] = v
	}
	return nil
}

// report prints what varies: counts that are settings are the same in every run of both. What only one of two revisions measures is said.
func report(out io.Writer, a, b *contender) error {
	fmt.Fprintf(out, "A: %s\nB: %s\n%-48s %30s %30s %7s\n", a.name, b.name, "median (least to greatest)", "A", "B", "B/A")
	for _, name := range either(a.figures, b.figures) {
		x, y := slices.Sorted(slices.Values(a.figures[name])), slices.Sorted(slices.Values(b.figures[name]))
		both := slices.Sorted(slices.Values(slices.Concat(x, y)))
		switch {
		case len(x) == 0 || len(y) == 0:
			fmt.Fprintf(out, "%-48s %30s %30s\n", name, spread(x), spread(y))
		case both[0] < both[len(both)-1]:
			fmt.Fprintf(out, "%-48s %30s %30s %7.3f\n", name, spread(x), spread(y), y[len(y)/2]/x[len(x)/2])
		}
	}
	var differ []string
	for _, name := range either(a.hashes, b.hashes) {
		x, y := a.hashes[name], b.hashes[name]
		verdict := "same"
		if x == "" || y == "" {
			verdict = "in one only"
		} else if x != y {
			verdict = "DIFFERENT"
			differ = append(differ, name)
		}
		fmt.Fprintf(out, "%-48s %30s %30s %s\n", name, x, y, verdict)
	}
	if len(differ) > 0 {
		return fmt.Errorf("the tokens differ: %s", strings.Join(differ, ", "))
	}
	return nil
}

// either are the names in one map or the other, in order.
func either[V any](a, b map[string]V) []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(names)
	return slices.Compact(names)
}

func spread(sorted []float64) string {
	if len(sorted) == 0 {
		return "not measured"
	}
	return fmt.Sprintf("%.5g (%.4g to %.4g)", sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1])
}
