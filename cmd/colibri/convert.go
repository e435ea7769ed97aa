package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"colibri/backend/container"
)

// encodingFlag is a flag that names a weight format.
type encodingFlag struct{ to *container.Encoding }

func (e encodingFlag) String() string {
	if e.to == nil || e.to.Format == 0 {
		return ""
	}
	return e.to.String()
}

func (e encodingFlag) Set(text string) (err error) {
	*e.to, err = container.ParseEncoding(text)
	return err
}

func convertCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	var options container.Options
	var dense container.Encoding
	flags := flag.NewFlagSet("convert", flag.ContinueOnError)
	flags.Var(encodingFlag{&options.Experts}, "experts", "`FORMAT` of the routed experts (default int4-g64)")
	flags.Var(encodingFlag{&dense}, "dense", "`FORMAT` of attention, shared experts and dense layers (default int8)")
	flags.Var(encodingFlag{&options.MTP}, "mtp", "`FORMAT` of the multi-token-prediction layer (default int8)")
	flags.Var(encodingFlag{&options.Embeddings}, "embeddings", "`FORMAT` of embeddings and output head (default int8)")
	rest, err := parse(flags, args, notes)
	if err != nil {
		return err
	}
	if len(rest) != 2 {
		return usagef("name the model's folder and the folder to write: colibri convert IN OUT")
	}
	options.SharedExperts, options.Attention, options.DenseMLP = dense, dense, dense

	shown := false
	progress := func(p container.Progress) {
		if !isTerminal(notes) || p.BytesAll == 0 {
			return
		}
		shown = true
		left := ""
		if p.Remaining > 0 {
			left = ", " + p.Remaining.Round(time.Second).String() + " left"
		}
		fmt.Fprintf(notes, "\r\x1b[K%3d %% of %s, file %d of %d%s", 100*p.Bytes/p.BytesAll, formatBytes(p.BytesAll), p.Files+1, p.FilesAll, left)
	}
	report, err := container.Convert(ctx, rest[0], rest[1], options, progress)
	if shown {
		fmt.Fprint(notes, "\r\x1b[K")
	}
	if err != nil {
		if ctx.Err() != nil {
			return fmt.Errorf("interrupted; the same command continues where it stopped: %w", err)
		}
		return err
	}
	for _, warning := range report.Warnings {
		fmt.Fprintln(notes, "note:", warning)
	}
	fmt.Fprintf(out, "%s: %s in %d files, %s\n", rest[1], formatBytes(report.Bytes), report.Files+report.FilesKept, report.Elapsed.Round(time.Millisecond))
	fmt.Fprintf(out, "%-16s %-18s %10s  %s\n", "tensors", "format", "size", "error (root mean square, relative; largest)")
	for _, c := range report.Classes {
		names := make([]string, len(c.Encodings))
		for i, e := range c.Encodings {
			names[i] = e.String()
		}
		fmt.Fprintf(out, "%-16s %-18s %10s  %.2g; %.2g\n", c.Class, strings.Join(names, ", "), formatBytes(c.Bytes), c.RelativeError, c.LargestError)
	}
	return nil
}
