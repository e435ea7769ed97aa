package residency

import (
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write golden files instead of comparing with them")

const gib = 1 << 30

// simulatedMac is a Mac of the given memory. The GPU may hold 2/3 of a small one's memory and 84 % of a large one's, as measured
// (11.84 of 16 GiB, 107.52 of 128). Memory bandwidth grows with the class of chip that such memory is sold with.
func simulatedMac(gigabytes int, busy bool, diskGBs float64) Machine {
	memory := int64(gigabytes) * gib
	m := Machine{MemoryBytes: memory, DiskBytesPerSecond: diskGBs * 1e9, LayerSeconds: 250e-6}
	switch {
	case gigabytes <= 16:
		m.WorkingSetBytes = memory * 2 / 3
		m.WeightBytesPerSecond, m.OpsPerSecond = 80e9, 3e12
	case gigabytes <= 48:
		m.WorkingSetBytes = memory * 3 / 4
		m.WeightBytesPerSecond, m.OpsPerSecond = 180e9, 6e12
	case gigabytes <= 128:
		m.WorkingSetBytes = memory * 84 / 100
		m.WeightBytesPerSecond, m.OpsPerSecond = 380e9, 14e12
	default:
		m.WorkingSetBytes = memory * 84 / 100
		m.WeightBytesPerSecond, m.OpsPerSecond = 650e9, 22e12
	}
	// Idle: the system alone, 3 GiB and a 32nd of the memory. Busy: a browser, an editor and a call on top.
	m.OthersBytes = 3*gib + memory/32
	if busy {
		m.OthersBytes += min(memory/4, 16*gib)
	}
	return m
}

// glm52 is GLM-5.2 at int4-g64 (744 B weights, 429 GB on disk with its int8 MTP layer), a context of 4,096.
func glm52() Load {
	return Load{Layers: 78, SparseLayers: 75, Experts: 256, PerToken: 8, ExpertBytes: 21_233_664, ResidentBytes: 10_800_000_000,
		TokenBytes: 9_800_000_000, SharedBytes: 2_800_000_000, TokenWeights: 40_000_000_000, KVBytesPerToken: 182_000, Context: 4096,
		RowBytes: 884_736, PromptTokens: 256}
}

// qwen30b is a 30 B model of 48 layers with 128 experts, 8 used, at 4 bits.
func qwen30b() Load {
	return Load{Layers: 48, SparseLayers: 48, Experts: 128, PerToken: 8, ExpertBytes: 2_654_208, ResidentBytes: 1_300_000_000,
		TokenBytes: 1_000_000_000, TokenWeights: 3_300_000_000, KVBytesPerToken: 98_304, Context: 8192,
		RowBytes: 294_912, PromptTokens: 256}
}

func TestGoldenPlans(t *testing.T) {
	var b strings.Builder
	b.WriteString("Plans for simulated Macs (see simulatedMac): memory, others, disk; then the automatic limit, expert memory, experts, tok/s and seconds to the first word.\n")
	for _, model := range []struct {
		name string
		load Load
	}{{"GLM-5.2 int4-g64", glm52()}, {"30B-A3B 4 bits", qwen30b()}} {
		fmt.Fprintf(&b, "\n%s\n", model.name)
		for _, gigabytes := range []int{8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512} {
			for _, busy := range []bool{false, true} {
				for _, disk := range []float64{1.5, 5, 12, 17} {
					m := simulatedMac(gigabytes, busy, disk)
					state := map[bool]string{false: "idle", true: "busy"}[busy]
					fmt.Fprintf(&b, "%3d GB %s %4.1f GB/s  ", gigabytes, state, disk)
					p, err := NewPlan(m, model.load, 0)
					if err != nil {
						fmt.Fprintf(&b, "refused: needs more than %s\n", formatBytes(Budget(m)))
						continue
					}
					fmt.Fprintf(&b, "limit %8s  experts %8s %6d  tok/s %6.2f (%.2f to %.2f)  first word %6.1f s (%.1f to %.1f)\n",
						formatBytes(p.LimitBytes), formatBytes(p.SlotBytes), p.Slots,
						p.TokensPerSecond.Expected, p.TokensPerSecond.Low, p.TokensPerSecond.High,
						p.FirstWordSeconds.Expected, p.FirstWordSeconds.Low, p.FirstWordSeconds.High)
				}
			}
		}
	}
	path := filepath.Join("testdata", "plans.golden")
	if *update {
		if err := os.WriteFile(path, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, expected := strings.Split(b.String(), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(got), len(expected)) {
		if i >= len(got) || i >= len(expected) || got[i] != expected[i] {
			t.Fatalf("line %d differs; run with -update and read the change\n got %q\nwant %q", i+1, at(got, i), at(expected, i))
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return "(end)"
}

// TestPlansAreSound checks every plan of a dense table of machines against what must hold of all of them.
func TestPlansAreSound(t *testing.T) {
	for _, load := range []Load{glm52(), qwen30b()} {
		for _, busy := range []bool{false, true} {
			for _, disk := range []float64{1.5, 5, 12, 17} {
				var previous Plan
				for gigabytes := 8; gigabytes <= 512; gigabytes += 8 {
					m := simulatedMac(gigabytes, busy, disk)
					p, err := NewPlan(m, load, 0)
					name := fmt.Sprintf("%d GB, busy %v, %v GB/s", gigabytes, busy, disk)
					if err != nil {
						if previous.Slots > 0 {
							t.Errorf("%s: refused where a smaller machine works: %v", name, err)
						}
						if !strings.Contains(err.Error(), "this model needs") {
							t.Errorf("%s: no arithmetic in %v", name, err)
						}
						continue
					}
					total := p.ResidentBytes + p.KVBytes + p.ScratchBytes + p.StagingBytes + p.SlotBytes
					switch {
					case total > p.LimitBytes, p.LimitBytes > m.WorkingSetBytes, p.LimitBytes+m.OthersBytes > m.MemoryBytes:
						t.Errorf("%s: %+v exceeds the machine", name, p)
					case p.Slots < previous.Slots:
						t.Errorf("%s: fewer experts than on a smaller machine", name)
					case p.TokensPerSecond.Low > p.TokensPerSecond.Expected, p.TokensPerSecond.Expected > p.TokensPerSecond.High:
						t.Errorf("%s: range %v", name, p.TokensPerSecond)
					case p.FirstWordSeconds.Low > p.FirstWordSeconds.Expected, p.FirstWordSeconds.Expected > p.FirstWordSeconds.High:
						t.Errorf("%s: first word %v", name, p.FirstWordSeconds)
					case p.TokensPerSecond.Expected < previous.TokensPerSecond.Expected*0.999:
						t.Errorf("%s: slower than a smaller machine", name)
					}
					previous = p
				}
			}
		}
	}
}

func TestAUsersLimit(t *testing.T) {
	m, load := simulatedMac(48, false, 5), qwen30b()
	for limit := int64(3 * gib); limit < 60*gib; limit += gib {
		p, err := NewPlan(m, load, limit)
		if err != nil {
			t.Fatal(err)
		}
		if p.LimitBytes > limit || p.LimitBytes > m.WorkingSetBytes {
			t.Errorf("limit %d: plan for %d", limit, p.LimitBytes)
		}
		if limit > m.WorkingSetBytes && !strings.Contains(strings.Join(p.Sum, "\n"), "lowered") {
			t.Errorf("limit %d was lowered without a word: %q", limit, p.Sum)
		}
	}
	_, err := NewPlan(m, load, 2*gib)
	if err == nil || !strings.Contains(err.Error(), "limit set to 2.1 GB") || !strings.Contains(err.Error(), "a context of") {
		t.Errorf("a limit that a smaller context would fit: %v", err)
	}
	_, err = NewPlan(m, load, gib)
	if err == nil || !strings.Contains(err.Error(), "may use 1.1 GB") || strings.Contains(err.Error(), "would fit") {
		t.Errorf("a hopeless limit: %v", err)
	}
}

func TestHitCurve(t *testing.T) {
	l := qwen30b()
	l.Hits = []HitPoint{{0.5, 0.9}, {0.1, 0.4}, {0.25, 0.7}}
	for _, c := range []struct {
		slots int
		want  float64
	}{{6144, 1}, {3072, 0.9}, {1536, 0.7}, {614, 0.4}, {2304, 0.8}, {0, 0}} {
		if got := l.HitShare(c.slots); got.Expected < c.want-0.002 || got.Expected > c.want+0.002 || got.Low > got.Expected || got.High < got.Expected {
			t.Errorf("%d slots: %v, want %v", c.slots, got, c.want)
		}
	}
}

// A machine whose kernels differ by encoding takes the sum of each encoding's time, and its memory's rate for those nobody measured.
func TestProductsGoByTheirEncodingsRates(t *testing.T) {
	m := Machine{WeightBytesPerSecond: 10e9, KernelBytesPerSecond: map[string]float64{"int4-g64": 20e9}}
	l := Load{SparseLayers: 2, PerToken: 3, ExpertBytes: 1e9, TokenBytes: 4e9}
	if got := m.MultiplySeconds(l); got != 1 {
		t.Errorf("one rate: %g s for 10 GB", got)
	}
	l.Multiplied = map[string]int64{"int4-g64": 6e9, "int8-row": 4e9}
	if got, want := m.MultiplySeconds(l), 0.3+0.4; math.Abs(got-want) > 1e-12 {
		t.Errorf("by encoding: %g s, not %g", got, want)
	}
}

// A model that the last cache holds has the cache's rates, and its prompts the kernels' own; a byte more and it has the other ones.
func TestSmallModelsGoAtTheCachesRates(t *testing.T) {
	l := Load{SparseLayers: 2, Experts: 3, PerToken: 1, ExpertBytes: 1000, TokenBytes: 4000, Multiplied: map[string]int64{"int8-row": 6000},
		Prompted: map[string]int64{"int8-row": 6000}, Weights: map[string]int64{"int8-row": 6000}}
	m := Machine{CacheBytes: 10000, CachedBytesPerSecond: map[string]float64{"int8-row": 6000}, KernelBytesPerSecond: map[string]float64{"int8-row": 1000},
		PassBytesPerSecond: map[string]float64{"int8-row": 6000}, KernelOpsPerSecond: map[string]float64{"int8-row": 12000}, BeyondCache: 0.5}
	for _, c := range []struct {
		cache           int64
		token, products float64
	}{{10000, 1, 1 + 4}, {9999, 6, 2 * (1 + 4)}} {
		m.CacheBytes = c.cache
		if token, products := m.MultiplySeconds(l), m.ProductSeconds(l, 4, 1); token != c.token || products != c.products {
			t.Errorf("a cache of %d bytes: %g s a token, %g s for four of a prompt, not %g and %g", c.cache, token, products, c.token, c.products)
		}
	}
}

// A pass takes each weight in once, of experts those that its tokens use; each token is multiplied with its own experts alone.
func TestPromptsTakeWeightsInOnceAPass(t *testing.T) {
	m := Machine{PassBytesPerSecond: map[string]float64{"a": 100, "b": 10}, KernelOpsPerSecond: map[string]float64{"a": 1000, "b": 2000}}
	l := Load{SparseLayers: 2, Experts: 8, PerToken: 2, ExpertBytes: 50, Prompted: map[string]int64{"a": 700, "b": 200}, Routed: map[string]int64{"b": 200},
		Weights: map[string]int64{"a": 500, "b": 1000}, Touched: []TouchPoint{{10, 0.75}}}
	// Two passes of 10 tokens use 12 of the 16 experts, whose 50 bytes each take 5 s; the others' 700 take 7 s. A token does 1,000 and 2,000 operations.
	if got, want := m.ProductSeconds(l, 20, 2), 2*(7+12*5.0)+20*(1+1.0); math.Abs(got-want) > 1e-9 {
		t.Errorf("%g s, not %g", got, want)
	}
}

// A prompt's tokens leave keys and values alone in the last layer: of four layers, three are computed and their experts read.
func TestPromptsSkipTheLastLayer(t *testing.T) {
	m := Machine{PassBytesPerSecond: map[string]float64{"a": 100, "b": 10}, KernelOpsPerSecond: map[string]float64{"a": 1000, "b": 2000}, AttentionOpsPerSecond: 10,
		WeightBytesPerSecond: 50, OpsPerSecond: 1000}
	l := Load{SparseLayers: 2, Experts: 8, PerToken: 2, ExpertBytes: 50, Prompted: map[string]int64{"a": 700, "b": 200}, Routed: map[string]int64{"b": 200},
		Weights: map[string]int64{"a": 500, "b": 1000}, Touched: []TouchPoint{{10, 0.75}}, AttentionOps: 5, TokenBytes: 1000, TokenWeights: 500}
	for name, seconds := range map[string]func() float64{
		"products at measured rates": func() float64 { return m.ProductSeconds(l, 20, 2) },
		"products bound by reading":  func() float64 { return Machine{WeightBytesPerSecond: 50, OpsPerSecond: 1e9}.ProductSeconds(l, 20, 2) },
		"products bound by ops":      func() float64 { return Machine{WeightBytesPerSecond: 1e9, OpsPerSecond: 10}.ProductSeconds(l, 20, 2) },
		"attention":                  func() float64 { return m.AttentionSeconds(l, 100) },
		"experts":                    func() float64 { return l.passExperts(20, 2) },
	} {
		l.Layers = 0
		all := seconds()
		l.Layers = 4
		if got := seconds(); math.Abs(got-all*3/4) > 1e-9*all {
			t.Errorf("%s: %g of four layers, %g where none is skipped", name, got, all)
		}
	}
}

// Attention sees all tokens before, or the indexer's number of them.
func TestAttentionGrowsAsTheSquareUpToTheIndexersNumber(t *testing.T) {
	m, l := Machine{AttentionOpsPerSecond: 10}, Load{AttentionOps: 5}
	if got := m.AttentionSeconds(l, 100); got != 2500 {
		t.Errorf("%g s", got)
	}
	l.IndexTopK = 40
	if got := m.AttentionSeconds(l, 100); got != (800+60*40)/2 {
		t.Errorf("%g s with 40 positions at most", got)
	}
	if got := (Machine{}).AttentionSeconds(l, 100); got != 0 {
		t.Errorf("%g s at no known rate", got)
	}
}

// One token of two sparse layers of two experts, by hand: 1 s of experts and 0.5 s of shared ones a layer, 0.5 s of attention.
func TestReadsHideBehindWhatCanBeComputedMeanwhile(t *testing.T) {
	m := Machine{WeightBytesPerSecond: 1e9, DiskBytesPerSecond: 1e9, StreamSeconds: 0.25}
	l := Load{Layers: 2, SparseLayers: 2, Experts: 8, PerToken: 2, ExpertBytes: 5e8, TokenBytes: 2e9, SharedBytes: 1e9}
	for _, c := range []struct {
		disk, alone, hits, want float64
	}{
		{1e9, 0, 1, 4},
		// Both missed: 1 s of reads, 0.5 s of which were guessed during attention (0.65 at most), then one expert of 0.5 s: all hides.
		{1e9, 0, 0, 2 * (0.5 + 1.5 + 0.25)},
		// A quarter of that disk: 4 s of reads less 0.5, and one expert.
		{0.25e9, 0, 0, 2 * (0.5 + 3.5 + 0.5 + 0.25)},
		// Where one read by itself takes 3 s more than its bytes, two at once take no less than one, and not more while their bytes take longer.
		{1e9, 3, 0, 2 * (0.5 + 3 + 0.5 + 0.25)},
		{0.25e9, 1, 0, 2 * (0.5 + 3.5 + 0.5 + 0.25)},
		// Half of the uses hit: 2 missed in a quarter of the layers, 1 in half of them (2 s less 0.5, and one expert), none in a quarter.
		{0.25e9, 0, 0.5, 2 * (0.25*4.75 + 0.5*(0.5+1.5+0.5+0.25) + 0.25*2)},
	} {
		m.DiskBytesPerSecond, m.ReadSeconds = c.disk, c.alone
		if got, _, _ := tokenSeconds(m, l, c.hits); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("disk %g, hits %g: %g s, not %g", c.disk, c.hits, got, c.want)
		}
	}
}

func TestPassesTakeAPartOfWhatIsSpare(t *testing.T) {
	working := func(tokens int) int64 { return int64(tokens) * 100_000 }
	for _, c := range []struct {
		spare    int64
		fromDisk bool
		want     int
	}{
		{math.MaxInt64, false, 256}, {math.MaxInt64, true, 1024},
		{600e6, true, 768}, {599e6, true, 768}, {400e6, true, 576}, {100e6, true, 128}, {100e6, false, 144},
		{0, true, 16}, {-5, false, 16},
	} {
		got := PassTokens(c.spare, c.fromDisk, working)
		if got != c.want {
			t.Errorf("%d spare, from disk %v: %d tokens, not %d", c.spare, c.fromDisk, got, c.want)
		}
	}
}

// The first half of a trace fills the cache: two experts in turn miss twice in all, and nothing in the second half.
func TestCurvesOfATrace(t *testing.T) {
	trace := &Trace{Shape: Shape{Layers: 1, Experts: 40}}
	for token := range 8 {
		trace.Steps = append(trace.Steps, Step{Token: token, Experts: []int32{int32(token % 2), 7}})
	}
	hits, err := HitCurve(trace, 40)
	if err != nil {
		t.Fatal(err)
	}
	for _, point := range hits {
		if slots := point.Fraction * 40; slots >= 3 && point.Hits != 1 || slots < 2 {
			t.Errorf("%g slots hit %g", slots, point.Hits)
		}
	}
	want := []TouchPoint{{1, 2.0 / 40}, {2, 3.0 / 40}, {4, 3.0 / 40}, {8, 3.0 / 40}}
	if got := TouchCurve(trace, 40); !slices.Equal(got, want) {
		t.Errorf("%v, not %v", got, want)
	}
	l := Load{Experts: 40, PerToken: 2, Touched: want}
	if got := l.touched(3); math.Abs(got-3.0/40) > 1e-12 {
		t.Errorf("three tokens touch %g", got)
	}
	l.Touched = nil
	if got, uniform := l.touched(2), 1-math.Pow(0.95, 2); math.Abs(got-uniform) > 1e-12 {
		t.Errorf("two tokens touch %g without a trace, not %g", got, uniform)
	}
}
