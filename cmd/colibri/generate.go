package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"colibri/backend/container"
)

// generateCommand makes models that say nothing, for measuring: no download, any size, any family.
func generateCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	flags := flag.NewFlagSet("generate", flag.ContinueOnError)
	preset := flags.String("preset", "", "`NAME` of a ready shape: "+strings.Join(container.Presets(), ", "))
	configPath := flags.String("config", "", "the config.json `FILE` of a shape of your own (experts int4-g64, the rest int8)")
	seed := flags.Uint64("seed", 1, "same seed, same bytes")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) != 1:
		return usagef("name the folder to write: colibri generate OUT --preset NAME")
	case (*preset == "") == (*configPath == ""):
		return usagef("give either --preset NAME or --config FILE")
	}
	var config []byte
	var options container.Options
	if *preset != "" {
		if config, options, err = container.Preset(*preset); err != nil {
			return usageError{err.Error()}
		}
	} else if config, err = os.ReadFile(*configPath); err != nil {
		return err
	}
	report, err := container.Generate(ctx, rest[0], config, options, *seed, nil)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "%s: %s in %d files, %s\n", rest[0], formatBytes(report.Bytes), report.Files+report.FilesKept, report.Elapsed.Round(time.Millisecond))
	return nil
}
