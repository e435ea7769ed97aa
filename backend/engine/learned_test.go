package engine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"colibri/backend/residency"
)

// A size that the governor found best, below what the limit allows, is where the next session begins.
func TestTheBestSizeIsRemembered(t *testing.T) {
	dir := newCheckpoint(3, oddModels()["gqa"]).write(t)
	options := Options{Backend: "cpu", History: true, MemoryBytes: 1 << 30}
	prompt := []int32{1, 2, 3}
	// session loads, generates, learns and closes; it returns the bytes that experts may take, the words, and the notices.
	session := func(learn residency.Best, ceiling int64) (governed int64, ids []int32, notices string) {
		m, err := Load(t.Context(), dir, options)
		if err != nil {
			t.Fatal(err)
		}
		governed = m.budget.governed
		ids = generate(t, m, prompt, 10)
		if used := m.Stats().SlotBytes; used > governed {
			t.Errorf("%d bytes of experts where %d are allowed", used, governed)
		}
		notices = strings.Join(m.Stats().Notices, "; ")
		if learn.SlotBytes > 0 {
			m.learned.settled(learn, ceiling)
		}
		if err := m.Close(); err != nil {
			t.Fatal(err)
		}
		return governed, ids, notices
	}
	all, words, _ := session(residency.Best{}, 0)
	path := filepath.Join(dir, residency.SizesFile)
	if _, err := os.Stat(path); err == nil {
		t.Error("a size is remembered that nobody learned")
	}
	half := all / 2
	session(residency.Best{SlotBytes: half, TokenMillis: 7}, all)
	governed, ids, _ := session(residency.Best{}, 0)
	if governed != half {
		t.Errorf("the next session begins with %d bytes, %d were best", governed, half)
	}
	if !slices.Equal(ids, words) {
		t.Errorf("with a learned size %v, before %v", ids, words)
	}
	// Everything the limit allows is no size to learn.
	session(residency.Best{SlotBytes: all, TokenMillis: 5}, all)
	if governed, _, _ := session(residency.Best{}, 0); governed != all {
		t.Errorf("after all was best the next session begins with %d of %d", governed, all)
	}
	if err := os.WriteFile(path, []byte("{damaged"), 0o600); err != nil {
		t.Fatal(err)
	}
	if governed, _, notices := session(residency.Best{}, 0); governed != all || !strings.Contains(notices, "learned sizes") {
		t.Errorf("a damaged file: %d of %d bytes, notices %q", governed, all, notices)
	}
}
