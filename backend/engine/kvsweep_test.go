package engine

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestSweepingLeavesOnlyLivingConversations(t *testing.T) {
	store := KVStore{Dir: filepath.Join(t.TempDir(), "kv")}
	if err := store.Sweep(nil); err != nil {
		t.Errorf("a folder that was never made: %v", err)
	}
	if err := os.MkdirAll(store.Dir, 0o700); err != nil {
		t.Fatal(err)
	}
	foreign := filepath.Join(store.Dir, "notes.txt")
	named := filepath.Join(store.Dir, "0123456789abcdef01234567"+kvSuffix) // of a build that named files by their words
	for _, path := range []string{store.path("a"), store.path("b"), store.path("c"), named, foreign} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Sweep([]string{"a", "c", "never saved"}); err != nil {
		t.Fatal(err)
	}
	left, err := filepath.Glob(filepath.Join(store.Dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{store.path("a"), store.path("c"), foreign}
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("left: %v, want %v", left, want)
	}
}
