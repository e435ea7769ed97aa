package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// startSpeed is what a user waits for on the command line: this program is started anew, with a short question.
type startSpeed struct {
	FirstTokenMillis float64 `json:"first_token_ms"` // from the process's start to the first byte of the answer
	EndMillis        float64 `json:"end_ms"`         // to its end, 8 tokens later (without a tokenizer, 1: ids are printed together)
	TokenHash        string  `json:"token_hash"`     // of what it printed
}

// benchStart runs `colibri run` in processes of its own. The files are in the page cache after the first, which does not count.
func benchStart(ctx context.Context, f *benchFlags) (*startSpeed, error) {
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args, clean, err := f.startArguments(ctx)
	if err != nil {
		return nil, err
	}
	defer clean()
	var first, end []float64
	var printed string
	for round := range f.rounds + 1 {
		output, toFirst, toEnd, err := timeProcess(ctx, program, args)
		if err != nil {
			return nil, err
		}
		if round > 0 && output != printed {
			return nil, fmt.Errorf("two processes answered the same question with %q and %q", printed, output)
		}
		printed = output
		if round > 0 {
			first, end = append(first, toFirst.Seconds()*1e3), append(end, toEnd.Seconds()*1e3)
		}
	}
	sum := sha256.Sum256([]byte(printed))
	return &startSpeed{middle(first), middle(end), hex.EncodeToString(sum[:8])}, nil
}

// startArguments ask a question in words, or in random tokens where the model has no tokenizer.
func (f *benchFlags) startArguments(ctx context.Context) (args []string, clean func(), err error) {
	args = []string{"run", "--backend", f.backend, "--temperature", "0"}
	if f.memory > 0 {
		args = append(args, "--memory", fmt.Sprint(int64(f.memory)))
	}
	question := []string{"--prompt", "Tell me a story.", "--max-tokens", "8"}
	if f.dir == "" {
		return append(args, question...), func() {}, nil
	}
	args = append(args, "--model", f.dir)
	if _, err := os.Stat(filepath.Join(f.dir, "tokenizer.json")); err == nil {
		return append(args, question...), func() {}, nil
	}
	file, err := os.CreateTemp("", "colibri-bench-*.json")
	if err != nil {
		return nil, nil, err
	}
	clean = func() { os.Remove(file.Name()) }
	if err := errors.Join(json.NewEncoder(file).Encode([]int32{1, 2, 3, 4, 5, 6, 7, 8}), file.Close()); err != nil {
		clean()
		return nil, nil, err
	}
	return append(args, "--ids", file.Name(), "--max-tokens", "1"), clean, nil
}

// timeProcess waits for the first byte of a process's output, and for its end.
func timeProcess(ctx context.Context, program string, args []string) (output string, first, end time.Duration, err error) {
	command := exec.CommandContext(ctx, program, args...)
	var complaint strings.Builder
	command.Stderr = &complaint
	pipe, err := command.StdoutPipe()
	if err != nil {
		return "", 0, 0, err
	}
	began := time.Now()
	if err := command.Start(); err != nil {
		return "", 0, 0, err
	}
	start := make([]byte, 1)
	_, readErr := io.ReadFull(pipe, start)
	first = time.Since(began)
	rest, restErr := io.ReadAll(pipe)
	if err := command.Wait(); err != nil {
		return "", 0, 0, fmt.Errorf("colibri %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(complaint.String()))
	}
	return string(start) + string(rest), first, time.Since(began), errors.Join(readErr, restErr)
}
