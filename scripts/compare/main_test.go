package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// bench is a program that reports as colibri bench does, and writes down that it ran. Its speed grows with every run.
func bench(t *testing.T, name, log, hash string) *contender {
	path := filepath.Join(t.TempDir(), name)
	script := fmt.Sprintf(`#!/bin/sh
echo "%s $*" >> %s
n=$(grep -c "^%s " %s)
echo '{"threads":2,"model":{"tokens_per_second":'"$n"',"token_hash":"%s"},"kernels":[{"format":"int8-row","rows":4,"columns":8,"bytes_per_second":'"$n"'}]}'
`, name, log, name, log, hash)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return &contender{name: name, program: path, options: []string{"--parts", "model"}, figures: map[string][]float64{}, hashes: map[string]string{}}
}

func TestContendersTakeTurnsAndAreReported(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	a, b := bench(t, "a", log, "feed"), bench(t, "b", log, "feed")
	if err := takeTurns([]*contender{a, b}, 3); err != nil {
		t.Fatal(err)
	}
	ran, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	line := " bench --json --rounds 1 --parts model\n"
	if want := "a" + line + "b" + line + "b" + line + "a" + line + "a" + line + "b" + line; string(ran) != want {
		t.Errorf("they ran as\n%s\nnot\n%s", ran, want)
	}
	delete(b.figures, "kernels int8-row 4x8 bytes_per_second")
	a.figures["model tokens_per_second"] = []float64{30, 10, 20}
	var out strings.Builder
	if err := report(&out, a, b); err != nil {
		t.Error(err)
	}
	for _, want := range []string{"20 (10 to 30)", "2 (1 to 3)", "0.100", "kernels int8-row 4x8 bytes_per_second", "not measured", "feed", "same"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "threads") {
		t.Errorf("a setting that never varies is reported:\n%s", out.String())
	}
}

func TestOtherTokensFail(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	a, b := bench(t, "a", log, "feed"), bench(t, "b", log, "beef")
	if err := takeTurns([]*contender{a, b}, 1); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := report(&out, a, b); err == nil || !strings.Contains(err.Error(), "model token_hash") {
		t.Errorf("two programs with other tokens: %v", err)
	}
	a.program = b.program
	if err := a.measure(); err == nil || !strings.Contains(err.Error(), "two runs gave different tokens") {
		t.Errorf("one program with other tokens than before: %v", err)
	}
	a.program = filepath.Join(t.TempDir(), "none")
	if err := a.measure(); err == nil {
		t.Error("a program that is not there was measured")
	}
}
