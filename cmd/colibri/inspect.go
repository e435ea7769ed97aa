package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"colibri/backend/container"
)

func inspectCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet("inspect", flag.ContinueOnError)
	asJSON := flags.Bool("json", false, "print one JSON object")
	rest, err := parse(flags, args, notes)
	if err != nil {
		return err
	}
	if len(rest) != 1 {
		return usagef("name one model folder: colibri inspect DIR")
	}
	d, err := container.Describe(rest[0])
	if err != nil {
		return err
	}
	if *asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		return encoder.Encode(d)
	}
	return printDescription(out, d)
}

func printDescription(out io.Writer, d *container.Description) error {
	fmt.Fprintf(out, "%s: %s, %s parameters, %s used per token\n", d.Name, d.Family, count(d.Parameters), count(d.ActiveParameters))
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "layers\t%d, %d of them with %d experts (%d used per token)\n", d.Layers, d.SparseLayers, d.Experts, d.ExpertsPerToken)
	fmt.Fprintf(t, "context\t%d tokens, %s of memory each\n", d.Context, formatBytes(int64(d.KVBytesPerToken)))
	fmt.Fprintf(t, "on disk\t%s in %d files\n", formatBytes(d.FileBytes), d.Files)
	fmt.Fprintf(t, "stays in memory\t%s\n", formatBytes(d.ResidentBytes))
	for _, e := range d.ExpertSizes {
		fmt.Fprintf(t, "experts\t%d of %s, %s\n", e.Count, formatBytes(e.Bytes), e.Formats)
	}
	fmt.Fprintf(t, "reads per expert\t%d, %s per token when none is in memory\n", d.ReadsPerExpert, formatBytes(d.BytesPerToken))
	for _, f := range d.Formats {
		fmt.Fprintf(t, "%s\t%s, %s\n", f.Class, strings.Join(f.Formats, ", "), formatBytes(f.Bytes))
	}
	if d.MTPLayers > 0 {
		fmt.Fprintf(t, "token prediction\t%d layer, %s parameters\n", d.MTPLayers, count(d.MTPParameters))
	}
	if d.IndexerLayers > 0 {
		fmt.Fprintf(t, "sparse attention\t%d positions, chosen by %d layers\n", d.IndexTopK, d.IndexerLayers)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, w := range d.Warnings {
		fmt.Fprintln(out, "note:", w)
	}
	if n := len(d.Ignored); n > 0 {
		fmt.Fprintf(out, "note: %d tensors are not used, the first is %s\n", n, d.Ignored[0])
	}
	return nil
}

// count writes parameters as people say them: 42 M, 744 B.
func count(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.3g B", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.3g M", float64(n)/1e6)
	}
	return fmt.Sprint(n)
}
