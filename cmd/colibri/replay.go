package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"colibri/backend/residency"
)

// replayOutput is the object that --json prints. Its names are a contract.
type replayOutput struct {
	Misses   int                        `json:"misses"` // of the default policy
	Slots    int                        `json:"slots"`
	Policies map[string]residency.Count `json:"policies"`
}

func replayCommand(_ context.Context, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet("replay", flag.ContinueOnError)
	slots := flags.Int("slots", 0, "experts that fit in memory, of all layers together, `N`")
	policy := flags.String("policy", "", "only this policy: "+strings.Join(residency.ReplayPolicies(), ", "))
	asJSON := flags.Bool("json", false, "print one JSON object")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) != 1:
		return usagef("name one trace, as colibri run --trace writes it: colibri replay TRACE --slots N")
	case *slots < 1:
		return usagef("--slots must be at least 1")
	case *policy != "" && !slices.Contains(residency.ReplayPolicies(), *policy):
		return usagef("there is no policy %q; use one of %s", *policy, strings.Join(residency.ReplayPolicies(), ", "))
	}
	file, err := os.Open(rest[0])
	if err != nil {
		return err
	}
	defer file.Close()
	trace, err := residency.ReadTrace(file)
	if err != nil {
		return fmt.Errorf("%s: %w", rest[0], err)
	}
	// The first of ReplayPolicies is the default one, which --json always reports.
	names := residency.ReplayPolicies()
	if *policy != "" {
		names = slices.Compact([]string{names[0], *policy})
	}
	result := replayOutput{Slots: *slots, Policies: map[string]residency.Count{}}
	for _, name := range names {
		count, err := residency.ReplayByName(trace, *slots, name)
		if err != nil {
			return err
		}
		result.Policies[name] = count
	}
	result.Misses = result.Policies[names[0]].Misses
	if *asJSON {
		return json.NewEncoder(out).Encode(result)
	}
	for _, name := range names {
		count := result.Policies[name]
		fmt.Fprintf(out, "%-10s %9d hits %9d misses  %5.1f %% missed\n", name, count.Hits, count.Misses, 100*count.MissRate())
	}
	return nil
}
