package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"colibri/backend/container"
)

// The whole process, as the system counts its resident memory, stays under the limit that the user set, in a long prompt as in an answer: a random model of 4.2 GB under
// 600 MB. It writes the model and reads 20 GB, so it runs with COLIBRI_SOAK=1 only; what the program counts itself is tested at every limit elsewhere.
func TestTheProcessStaysUnderItsLimit(t *testing.T) {
	if os.Getenv("COLIBRI_SOAK") != "1" {
		t.Skip("COLIBRI_SOAK=1 runs it")
	}
	config, _, err := container.Preset("streaming-4gb")
	if err != nil {
		t.Fatal(err)
	}
	const limit, limitBytes = "600MB", 600_000_000
	shape := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(shape, config, 0o600); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "model")
	mustRun(t, "generate", dir, "--config", shape)
	var prompt []int32
	for i := range 300 {
		prompt = append(prompt, int32(i*37%8000))
	}
	ids := filepath.Join(t.TempDir(), "ids.json")
	list, err := json.Marshal(prompt)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ids, list, 0o600); err != nil {
		t.Fatal(err)
	}
	var out, notes bytes.Buffer
	run := exec.CommandContext(t.Context(), os.Args[0], "run", "--model", dir, "--memory", limit, "--ids", ids, "--max-tokens", "48", "--json") // see TestMain
	run.Stdout, run.Stderr = &out, &notes
	if err := run.Run(); err != nil {
		t.Fatalf("%v: %s", err, notes.String())
	}
	var answer runOutput
	if err := json.Unmarshal(out.Bytes(), &answer); err != nil {
		t.Fatal(err)
	}
	peak := run.ProcessState.SysUsage().(*syscall.Rusage).Maxrss
	if runtime.GOOS != "darwin" { // bytes there, KiB elsewhere
		peak *= 1024
	}
	t.Logf("a peak of %d bytes resident, %d as counted, under %d; %d bytes read", peak, answer.Stats.PeakBytes, limitBytes, answer.Stats.BytesRead)
	if peak > limitBytes || len(answer.IDs) != 48 || answer.Stats.BytesRead < 360e6 {
		t.Errorf("%d tokens, a peak of %d bytes under a limit of %d, %d bytes read", len(answer.IDs), peak, limitBytes, answer.Stats.BytesRead)
	}
}
