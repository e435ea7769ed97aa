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
	for round := range *rounds {
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
	return report(contenders[0], contenders[1])
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
	return program, command(source, "go", "build", "-o", program, "./cmd/colibri")
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

// report prints what varies: counts that are settings are the same in every run of both.
func report(a, b *contender) error {
	fmt.Printf("A: %s\nB: %s\n%-48s %30s %30s %7s\n", a.name, b.name, "median (least to greatest)", "A", "B", "B/A")
	names := make([]string, 0, len(a.figures))
	for name := range a.figures {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		x, y := a.figures[name], b.figures[name]
		slices.Sort(x)
		slices.Sort(y)
		if len(y) == 0 || x[0] == x[len(x)-1] && y[0] == y[len(y)-1] && x[0] == y[0] {
			continue
		}
		fmt.Printf("%-48s %30s %30s %7.3f\n", name, spread(x), spread(y), y[len(y)/2]/x[len(x)/2])
	}
	var differ []string
	for name, hash := range a.hashes {
		same := "same"
		if other, ok := b.hashes[name]; !ok {
			same = "A only"
		} else if other != hash {
			same = "DIFFERENT: " + other
			differ = append(differ, name)
		}
		fmt.Printf("%-48s %30s  %s\n", name, hash, same)
	}
	if len(differ) > 0 {
		return fmt.Errorf("the tokens differ: %s", strings.Join(differ, ", "))
	}
	return nil
}

func spread(sorted []float64) string {
	return fmt.Sprintf("%.5g (%.4g to %.4g)", sorted[len(sorted)/2], sorted[0], sorted[len(sorted)-1])
}
