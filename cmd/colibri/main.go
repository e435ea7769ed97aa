// Command colibri is the engine without a window: it runs, measures, converts and inspects models.
//
// Exit codes: 0 done, 1 failed with one sentence on stderr, 2 wrong usage.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

// command is one verb. run returns nil, a usageError, or the sentence to print.
type command struct {
	name, summary string
	run           func(ctx context.Context, args []string, out, notes io.Writer) error
}

var commands = []command{
	{"run", "answers a prompt", runCommand},
	{"eval", "writes the logits of given tokens, or the perplexity of a text", evalCommand},
	{"convert", "writes a Colibri container from a checkpoint or a published container", convertCommand},
	{"generate", "writes a container with random weights, for measuring", generateCommand},
	{"inspect", "says what a container holds", inspectCommand},
	{"doctor", "says what this machine is and what it would run", doctorCommand},
	{"plan", "predicts speed and memory of a model on a described machine", planCommand},
	{"replay", "counts hits and misses of expert caches over a recorded trace", replayCommand},
	{"bench", "measures kernels, prefill, decode, drafts and start-up", benchCommand},
}

// usageError is a mistake in the arguments: exit code 2.
type usageError struct{ text string }

func (e usageError) Error() string { return e.text }

func usagef(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

func main() {
	// The first Ctrl-C ends the work in hand cleanly; a second one ends the program at once.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(dispatch(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// dispatch runs the verb in args and returns the exit code.
func dispatch(ctx context.Context, args []string, out, notes io.Writer) int {
	if len(args) == 0 {
		printUsage(notes)
		return 2
	}
	switch args[0] {
	case "-h", "--help", "help":
		printUsage(out)
		return 0
	}
	for _, c := range commands {
		if c.name != args[0] {
			continue
		}
		err := c.run(ctx, args[1:], out, notes)
		var usage usageError
		switch {
		case err == nil || errors.Is(err, flag.ErrHelp):
			return 0
		case errors.As(err, &usage):
			fmt.Fprintf(notes, "colibri %s: %s\n", c.name, err)
			return 2
		}
		fmt.Fprintf(notes, "colibri: %s\n", err)
		return 1
	}
	fmt.Fprintf(notes, "colibri: there is no command %q\n", args[0])
	printUsage(notes)
	return 2
}

func printUsage(w io.Writer) {
	fmt.Fprintln(w, "usage: colibri COMMAND [options]; colibri COMMAND --help explains one")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-8s %s\n", c.name, c.summary)
	}
}

// parse reads flags that may stand before, between and after the positional arguments, and returns the latter.
func parse(flags *flag.FlagSet, args []string, notes io.Writer) ([]string, error) {
	flags.SetOutput(io.Discard) // package flag would print a mistake, and all options after it, before dispatch prints the mistake
	var positional []string
	for {
		if err := flags.Parse(args); err != nil {
			if errors.Is(err, flag.ErrHelp) {
				flags.SetOutput(notes)
				flags.Usage()
				return nil, err
			}
			return nil, usagef("%s; colibri %s --help lists the options", err, flags.Name())
		}
		rest := flags.Args()
		if len(rest) == 0 {
			return positional, nil
		}
		if len(args) > len(rest) && args[len(args)-len(rest)-1] == "--" {
			return append(positional, rest...), nil
		}
		positional, args = append(positional, rest[0]), rest[1:]
	}
}
