package residency

import (
	"fmt"
	"maps"
	"math"
	"slices"
)

// Machine is what a plan needs to know of a computer. All of it is measured or asked for elsewhere; here it is values.
type Machine struct {
	MemoryBytes int64 // installed, or the container's limit on Linux
	// WorkingSetBytes is how much the GPU may hold at once (recommendedMaxWorkingSetSize); 0 without a GPU.
	WorkingSetBytes int64
	// OthersBytes is what other programs and the system hold and will not give up: wired, anonymous and compressed memory
	// without this process; the file cache is not part of it.
	OthersBytes int64
	// DiskBytesPerSecond is the measured rate of direct reads of expert-sized records by the reader pool.
	DiskBytesPerSecond float64
	// WeightBytesPerSecond is the measured rate at which one token's weights are multiplied.
	WeightBytesPerSecond float64
	// KernelBytesPerSecond is the same by encoding, where it was measured; other encodings go by WeightBytesPerSecond.
	KernelBytesPerSecond map[string]float64
	// LayerSeconds is what a layer costs beyond its bytes: launching, waiting, the router's round trip.
	LayerSeconds float64
	// OpsPerSecond is the measured rate of a prompt's matrix products (two operations for each weight and token).
	OpsPerSecond float64
}

// Load is what a plan needs to know of a model and of how it will be used.
type Load struct {
	Layers, SparseLayers int
	Experts, PerToken    int   // of one sparse layer
	ExpertBytes          int64 // of a slot, on average
	ResidentBytes        int64 // dense weights kept in memory
	TokenBytes           int64 // of them, those that a token multiplies with (all but the embedding table)
	// Multiplied are the bytes that a token multiplies with, its experts included, by encoding. Without it, TokenBytes and the experts
	// go by the machine's one rate.
	Multiplied               map[string]int64
	TokenWeights             int64 // weights that a token multiplies with, its experts included
	KVBytesPerToken          int64
	Context                  int // tokens for which KV memory is planned
	ScratchBytes             int64
	StagingBytes             int64 // of the readers
	PromptTokens, BatchToken int   // the prompt for which the first word is estimated, and the tokens of one prefill pass
	// Hits is the share of hits at growing shares of experts in memory, measured by replaying a trace of this model. Without
	// it the estimate is for an unknown model and its range is wide.
	Hits []HitPoint
}

// HitPoint is a point of a hit curve; both are in 0…1.
type HitPoint struct{ Fraction, Hits float64 }

// Range is an estimate with its bounds.
type Range struct{ Low, Expected, High float64 }

// Plan is how a model will use a machine's memory, and what that gives.
type Plan struct {
	LimitBytes    int64 // all that follows together
	ResidentBytes int64
	KVBytes       int64
	ScratchBytes  int64
	StagingBytes  int64
	SlotBytes     int64 // a multiple of ExpertBytes
	Slots         int

	TokensPerSecond  Range
	FirstWordSeconds Range
	Sum              []string // the arithmetic, a line each, for people
}

// The share of hits that published runs reached with a share f of the experts in memory is about f^0.24 for GLM-5.2 in long
// sessions (68 % at 0.2 on an M5 Max 128 GB, 82 % at 0.4 on an M3 Ultra), much less when cold (21 % at 0.08). A model that nobody
// has measured is taken to lie between f^0.6 and f^0.24.
const (
	hitExponentHigh     = 0.24
	hitExponentExpected = 0.35
	hitExponentLow      = 0.6
)

// SystemMargin is what is left free beyond what others hold: for their spikes, for the file cache and for the window server. The
// memory compressor starts long before memory is full; a cache that it compresses is slower than a smaller one.
func SystemMargin(memoryBytes int64) int64 { return min(1<<30+memoryBytes/16, 8<<30) }

// Budget is the memory that this program may use on a machine when the user has set no limit: what others leave, less the
// margin, and no more than the GPU may hold, less a 32nd for its own tables.
func Budget(m Machine) int64 {
	b := m.MemoryBytes - m.OthersBytes - SystemMargin(m.MemoryBytes)
	if m.WorkingSetBytes > 0 {
		b = min(b, m.WorkingSetBytes-m.WorkingSetBytes/32)
	}
	return max(b, 0)
}

// NewPlan divides memory. userLimitBytes is the user's limit, 0 for automatic; a user's limit is believed even where it exceeds
// what others leave (they may be about to quit), but never beyond the machine or the GPU. It refuses, with the
// arithmetic, what cannot work.
func NewPlan(m Machine, l Load, userLimitBytes int64) (Plan, error) {
	limit := Budget(m)
	say := []string{fmt.Sprintf("%s of memory − %s that others hold − %s kept free = %s",
		formatBytes(m.MemoryBytes), formatBytes(m.OthersBytes), formatBytes(SystemMargin(m.MemoryBytes)),
		formatBytes(max(m.MemoryBytes-m.OthersBytes-SystemMargin(m.MemoryBytes), 0)))}
	hard := m.MemoryBytes
	if m.WorkingSetBytes > 0 {
		hard = min(hard, m.WorkingSetBytes-m.WorkingSetBytes/32)
		say = append(say, fmt.Sprintf("the GPU may hold %s", formatBytes(hard)))
	}
	if userLimitBytes > 0 {
		limit = min(userLimitBytes, hard)
		say = []string{fmt.Sprintf("limit set to %s", formatBytes(userLimitBytes))}
		if limit < userLimitBytes {
			say = append(say, fmt.Sprintf("lowered to %s, which is all that this machine's processor can hold", formatBytes(limit)))
		}
	}
	p := Plan{LimitBytes: limit, ResidentBytes: l.ResidentBytes, KVBytes: l.KVBytesPerToken * int64(l.Context),
		ScratchBytes: l.ScratchBytes, StagingBytes: l.StagingBytes}
	fixed := p.ResidentBytes + p.KVBytes + p.ScratchBytes + p.StagingBytes
	all := l.SparseLayers * l.Experts
	p.Slots = int(max(limit-fixed, 0) / max(l.ExpertBytes, 1))
	p.Slots = min(p.Slots, all)
	p.SlotBytes = int64(p.Slots) * l.ExpertBytes
	least := min(l.PerToken, all)
	say = append(say,
		fmt.Sprintf("%s resident + %s for a context of %d tokens + %s working memory + %s for reads in flight = %s",
			formatBytes(p.ResidentBytes), formatBytes(p.KVBytes), l.Context, formatBytes(p.ScratchBytes), formatBytes(p.StagingBytes), formatBytes(fixed)),
		fmt.Sprintf("%s are left for experts: %d of %d (%s each)", formatBytes(max(limit-fixed, 0)), p.Slots, all, formatBytes(l.ExpertBytes)))
	p.Sum = say
	if p.Slots < least {
		need := fixed + int64(least)*l.ExpertBytes
		err := fmt.Errorf("this model needs %s and may use %s: %s; at least %d experts (%s) must fit",
			formatBytes(need), formatBytes(limit), joinSentences(say), least, formatBytes(int64(least)*l.ExpertBytes))
		if p.KVBytes > 0 && need-p.KVBytes < limit {
			err = fmt.Errorf("%w; a context of %d tokens would fit", err, (limit-(need-p.KVBytes))/l.KVBytesPerToken)
		}
		return Plan{}, err
	}
	p.TokensPerSecond = tokensPerSecond(m, l, p.Slots)
	p.FirstWordSeconds = firstWord(m, l, p.Slots)
	return p, nil
}

func joinSentences(lines []string) string {
	out := ""
	for i, line := range lines {
		if i > 0 {
			out += "; "
		}
		out += line
	}
	return out
}

// HitShare estimates the share of expert uses that find the expert in memory when slots of the model's experts fit.
func (l *Load) HitShare(slots int) Range {
	all := l.SparseLayers * l.Experts
	if all == 0 || slots >= all {
		return Range{1, 1, 1}
	}
	f := float64(slots) / float64(all)
	if len(l.Hits) > 0 {
		h := interpolate(l.Hits, f)
		// Another conversation than the recorded one misses more or less; a fifth of the misses either way was the spread
		// between chats of the bundled model.
		return Range{max(0, 1-1.2*(1-h)), h, 1 - 0.8*(1-h)}
	}
	return Range{math.Pow(f, hitExponentLow), math.Pow(f, hitExponentExpected), math.Pow(f, hitExponentHigh)}
}

// interpolate reads a hit curve between its points; it passes through (0, 0) and (1, 1).
func interpolate(points []HitPoint, f float64) float64 {
	curve := append([]HitPoint{{0, 0}, {1, 1}}, points...)
	slices.SortFunc(curve, func(a, b HitPoint) int {
		if a.Fraction < b.Fraction {
			return -1
		}
		return 1
	})
	for i := 1; i < len(curve); i++ {
		a, b := curve[i-1], curve[i]
		if f <= b.Fraction && b.Fraction > a.Fraction {
			return a.Hits + (b.Hits-a.Hits)*(f-a.Fraction)/(b.Fraction-a.Fraction)
		}
	}
	return 1
}

// tokenSeconds is the time of computing one token with everything in memory, and of reading its misses.
func tokenSeconds(m Machine, l Load, hits float64) (compute, read float64) {
	uses := float64(l.SparseLayers * l.PerToken)
	compute = m.MultiplySeconds(l) + float64(l.Layers)*m.LayerSeconds
	read = uses * (1 - hits) * float64(l.ExpertBytes) / m.DiskBytesPerSecond
	return compute, read
}

// MultiplySeconds is the time of one token's products.
func (m Machine) MultiplySeconds(l Load) float64 {
	if len(l.Multiplied) == 0 {
		return (float64(l.TokenBytes) + float64(l.SparseLayers*l.PerToken)*float64(l.ExpertBytes)) / m.WeightBytesPerSecond
	}
	seconds := 0.0
	for _, encoding := range slices.Sorted(maps.Keys(l.Multiplied)) { // sorted: sums in one order give one result
		rate := m.KernelBytesPerSecond[encoding]
		if rate <= 0 {
			rate = m.WeightBytesPerSecond
		}
		seconds += float64(l.Multiplied[encoding]) / rate
	}
	return seconds
}

// tokensPerSecond bounds the speed: at worst nothing overlaps, at best the shorter of computing and reading hides behind
// the longer. 0.9 of the sum is what the project asks of itself.
func tokensPerSecond(m Machine, l Load, slots int) Range {
	hits := l.HitShare(slots)
	at := func(hits, overlap float64) float64 {
		compute, read := tokenSeconds(m, l, hits)
		return 1 / (compute + read - overlap*min(compute, read))
	}
	expected, read := tokenSeconds(m, l, hits.Expected)
	return Range{at(hits.Low, 0), 1 / max(0.9*(expected+read), max(expected, read)), at(hits.High, 1)}
}

// firstWord is the time until a prompt of PromptTokens has been computed: each pass over the model reads the experts that its
// tokens touch and that are not in memory, while it computes.
func firstWord(m Machine, l Load, slots int) Range {
	tokens := max(l.PromptTokens, 1)
	batch := max(l.BatchToken, 1)
	passes := (tokens + batch - 1) / batch
	inPass := float64(tokens) / float64(passes)
	touched := 1 - math.Pow(1-float64(l.PerToken)/float64(max(l.Experts, 1)), inPass)
	experts := float64(l.SparseLayers*l.Experts) * touched
	all := max(l.SparseLayers*l.Experts, 1)
	compute := max(2*float64(tokens)*float64(l.TokenWeights)/m.OpsPerSecond, float64(passes)*(float64(l.TokenBytes)+experts*float64(l.ExpertBytes))/m.WeightBytesPerSecond)
	compute += float64(passes*l.Layers) * m.LayerSeconds
	read := func(inMemory float64) float64 {
		return float64(passes) * experts * (1 - inMemory) * float64(l.ExpertBytes) / m.DiskBytesPerSecond
	}
	warm := float64(slots) / float64(all)
	// Cold: the first pass finds nothing in memory, later ones what fits. Warm: every pass finds what fits.
	cold := experts * float64(l.ExpertBytes) / m.DiskBytesPerSecond * warm
	return Range{max(compute, read(warm)), max(compute, read(warm)+cold), compute + read(warm) + cold}
}
