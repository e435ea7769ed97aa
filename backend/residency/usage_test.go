package residency

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"colibri/backend/telemetry"
)

func TestUsageComesBackAsItWasWritten(t *testing.T) {
	shape := Shape{5, 7}
	u := NewUsage(shape)
	random := rand.New(rand.NewPCG(1, 2))
	heat := make([]uint32, 35)
	for i := range heat {
		heat[i] = random.Uint32N(3)
	}
	u.Add(heat)
	u.Add(heat)
	path := filepath.Join(t.TempDir(), UsageFile)
	if err := u.Write(path, 4, "glm_moe_dsa"); err != nil {
		t.Fatal(err)
	}
	back, notice := ReadUsage(path, shape, 4, "glm_moe_dsa")
	if notice != "" || !reflect.DeepEqual(u, back) {
		t.Errorf("%q\n%v\n%v", notice, u, back)
	}
	if list, _ := os.ReadDir(filepath.Dir(path)); len(list) != 1 {
		t.Errorf("left behind: %v", list)
	}
}

func TestUsageOfTheExistingEngineIsRead(t *testing.T) {
	// FNV-1a of "glm_moe_dsa", computed by hand with the published offset 2166136261 and prime 16777619.
	hash := uint32(2166136261)
	for _, b := range []byte("glm_moe_dsa") {
		hash = (hash ^ uint32(b)) * 16777619
	}
	if identityHash("glm_moe_dsa") != hash {
		t.Fatal("identity")
	}
	shape := Shape{4, 8}
	for name, test := range map[string]struct{ content, notice string }{
		"header":        {"-1 3 8\n-2 1 " + uitoa(hash) + "\n1 2 5\n3 7 9\n", ""},
		"headerless":    {"1 2 5\n3 7 9\n\n", ""},
		"layers":        {"-1 4 8\n1 2 5\n", "4 layers and 8 experts"},
		"experts":       {"-1 3 9\n1 2 5\n", "9 experts"},
		"newer":         {"-1 3 8\n-2 2 " + uitoa(hash) + "\n", "newer"},
		"family":        {"-2 1 12345\n1 2 5\n", "another family"},
		"words":         {"1 2 many\n", "line 1"},
		"two fields":    {"1 2 5\n1 3\n", "line 2"},
		"negative":      {"1 2 -5\n", "out of range"},
		"layer":         {"4 2 5\n", "out of range"},
		"expert":        {"1 8 5\n", "out of range"},
		"overflow":      {"1 2 99999999999999999999\n", "line 1"},
		"repeated":      {"1 2 5\n1 2 6\n", "repeats"},
		"binary":        {"IKU1\x00\x00\xff", "line 1"},
		"endless line":  {strings.Repeat("9", 1<<17), "too long"},
		"half a number": {"1 2 5\n3 7", "line 2"},
	} {
		path := filepath.Join(t.TempDir(), UsageFile)
		if err := os.WriteFile(path, []byte(test.content), 0o600); err != nil {
			t.Fatal(err)
		}
		u, notice := ReadUsage(path, shape, 3, "glm_moe_dsa")
		if test.notice == "" && (notice != "" || u.Uses[1*8+2] != 5 || u.Uses[3*8+7] != 9 || u.Total() != 14) {
			t.Errorf("%s: %q %v", name, notice, u.Uses)
		}
		if test.notice != "" && (!strings.Contains(notice, test.notice) || !strings.Contains(notice, path) || u.Total() != 0) {
			t.Errorf("%s: %q %v", name, notice, u.Uses)
		}
	}
	if u, notice := ReadUsage(filepath.Join(t.TempDir(), "none"), shape, 3, "x"); notice != "" || u.Total() != 0 {
		t.Errorf("a missing history: %q", notice)
	}
	if _, notice := ReadUsage(t.TempDir(), shape, 3, "x"); !strings.Contains(notice, "ignored") {
		t.Errorf("a directory: %q", notice)
	}
}

func uitoa(n uint32) string {
	s := ""
	for ; n > 0; n /= 10 {
		s = string(rune('0'+n%10)) + s
	}
	return s
}

func TestFavouritesGrowWithTheHistory(t *testing.T) {
	u := NewUsage(Shape{2, 100})
	for e := range 100 {
		u.Uses[100+e] = uint64(e) * 40 // 198,000 uses; 99 is the most used
	}
	got := u.Favourites(40)
	for e := range 100 {
		if got[100+e] != (e >= 81) {
			t.Errorf("expert %d: %v", e, got[100+e])
		}
	}
	for e := range 100 {
		u.Uses[100+e] /= 100
	}
	if u.Favourites(40) != nil {
		t.Error("favourites from 1,980 uses")
	}
}

func TestFavouritesInMemoryAreShown(t *testing.T) {
	c := generate(t, testShape{layers: 2, experts: 8})
	history := NewUsage(Shape{2, 8})
	history.Uses[8+3] = 300_000
	recorder := telemetry.New(2, 8)
	s, _ := openStore(t, c, Options{LimitBytes: 4 * testSlotBytes, History: history, Telemetry: recorder})
	fetchAll(t, s, c, 1, 2, 3)
	if n := recorder.Snapshot(); n.PinnedSlots != 1 || n.CachedSlots != 1 {
		t.Errorf("%d pinned, %d cached", n.PinnedSlots, n.CachedSlots)
	}
	fetchAll(t, s, c, 1, 4, 5, 6, 7)
	if n := recorder.Snapshot(); n.PinnedSlots != 0 || n.CachedSlots != 4 {
		t.Errorf("after eviction: %d pinned, %d cached", n.PinnedSlots, n.CachedSlots)
	}
}

func FuzzUsage(f *testing.F) {
	f.Add([]byte("-1 3 8\n-2 1 5\n1 2 5\n"))
	f.Add([]byte("1 2 5\n1 2 5"))
	f.Fuzz(func(t *testing.T, content []byte) {
		u, err := parseUsage(content, Shape{4, 8}, 3, "glm_moe_dsa")
		if (u == nil) == (err == nil) {
			t.Error("neither a history nor a reason")
		}
	})
}

func TestSizes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sizes.json")
	s, notice := ReadSizes(path)
	if notice != "" {
		t.Fatal(notice)
	}
	s.Put(SizeKey("model", "Mac16,1 48 GB"), Best{SlotBytes: 16 << 30, TokenMillis: 700})
	if err := s.Write(path); err != nil {
		t.Fatal(err)
	}
	if back, notice := ReadSizes(path); notice != "" || !reflect.DeepEqual(s, back) {
		t.Errorf("%q %v", notice, back)
	}
	for _, bad := range []string{"", "{", `{"version":2}`, `{"version":1,"best":{"a":{"slotBytes":-1,"tokenMillis":1}}}`, `[]`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, notice := ReadSizes(path); !strings.Contains(notice, "ignored") || len(s.Best) != 0 {
			t.Errorf("%q: %q %v", bad, notice, s)
		}
	}
}
