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
	// CacheBytes is the size of the processor's last cache. A model that fits is multiplied at CachedBytesPerSecond, by encoding, where that was
	// measured.
	CacheBytes           int64
	CachedBytesPerSecond map[string]float64
	// ReadSeconds is what a read by itself takes beside its bytes at that rate: with few reads at once it counts.
	ReadSeconds float64
	// LayerSeconds is what a layer costs beyond its bytes: launching, waiting, the router's round trip.
	LayerSeconds float64
	// StreamSeconds is what a layer that reads experts costs on top: threads slept and wake, experts are computed in parts. It was 1.1 ms
	// on a virtual machine of two cores.
	StreamSeconds float64
	// OpsPerSecond is the measured rate of a prompt's matrix products (two operations for each weight and token).
	OpsPerSecond float64
	// KernelOpsPerSecond is the same by encoding, where it was measured.
	KernelOpsPerSecond map[string]float64
	// PassBytesPerSecond is the measured rate, by encoding, at which a pass of a prompt takes weights in and makes them ready, beside the
	// operations: with the few rows that an expert has, half of the time. Without it the larger of reading and computing counts.
	PassBytesPerSecond map[string]float64
	// BeyondCache is the share of both rates of a prompt's products that is reached inside a model that the processor's last cache does not hold; 0: all.
	BeyondCache float64
	// AttentionOpsPerSecond is the measured rate of a prompt's attention; 0: it is not counted by itself.
	AttentionOpsPerSecond float64
	// RowSeconds is what a prompt's token costs in a layer beyond its products and its attention: norms, sorting by expert.
	RowSeconds float64
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
	Multiplied      map[string]int64
	SharedBytes     int64            // of TokenBytes, what shared experts have in all layers: they compute while reads are under way
	Prompted        map[string]int64 // Multiplied of a prompt's token: without the output head, which the last one alone needs
	Routed          map[string]int64 // of them, the routed experts'
	TokenWeights    int64            // weights that a prompt's token multiplies with, its experts included
	Weights         map[string]int64 // the same by encoding
	AttentionOps    int64            // of all layers, for one token and one position that it sees
	IndexTopK       int              // the most positions that attention sees; 0: all
	KVBytesPerToken int64
	Context         int   // tokens for which KV memory is planned
	RowBytes        int64 // working memory for a token of a prompt's pass
	StagingBytes    int64 // of the readers
	PromptTokens    int   // the prompt for which the first word is estimated
	// Touched is the share of a layer's experts that growing numbers of tokens use between them, measured on the same trace as Hits.
	// Without it every expert is taken to be as likely as the others, which is the most they can touch.
	Touched []TouchPoint
	// Hits is the share of hits at growing shares of experts in memory, measured by replaying a trace of this model. Without
	// it the estimate is for an unknown model and its range is wide.
	Hits []HitPoint
}

// HitPoint is a point of a hit curve; both are in 0…1.
type HitPoint struct{ Fraction, Hits float64 }

// TouchPoint is a point of that curve.
type TouchPoint struct {
	Tokens int
	Share  float64
}

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
	PassTokens    int   // of a prompt that go through the model together
	MemoryBytes   int64 // of the process at its peak, as far as a conversation fills what is planned for it

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

// ProgramBytes is what the program itself takes of a limit beside what it counts: code, Go's heap, thread stacks. These were 30 MB beside
// a 4 GB model under a limit of 600 MB; smaller limits are for smaller models, whose headers take less.
func ProgramBytes(limitBytes int64) int64 { return min(limitBytes/16, 48<<20) }

// What a process has that only reads a model's headers: 9.9 MB with 224 to 512 experts, 17.8 MB with 4,608. ProgramBytes, which is kept free for
// it, leaves room for garbage.
const (
	processBytes       = 9 << 20
	processExpertBytes = 1800
)

// The longest pass of a prompt. 256 tokens reuse a weight in memory often enough to be bound by arithmetic. Where experts come from the
// disk, every pass reads nearly all of them once, so that it is made as long as a sixth of the memory for experts and passes allows. A 4 GB
// model under 600 MB read 17 to 20 GB for a prompt of 400 tokens in passes of 64, and so reads 6 GB, 16 tokens of answer included. What that
// memory would have held are 3 % more misses in decoding, by the hit curve: an estimate.
const (
	passInMemory = 256
	passFromDisk = 1024
	shortestPass = 16
	passShare    = 6
	leastPass    = 2 << 20
)

// PassTokens chooses the longest pass, by the working memory that passes take and what the limit leaves beside all else but the experts.
func PassTokens(spareBytes int64, fromDisk bool, workingBytes func(tokens int) int64) (tokens int) {
	tokens = passInMemory
	if fromDisk {
		tokens = passFromDisk
	}
	for tokens > shortestPass && workingBytes(tokens) > max(spareBytes/passShare, leastPass) {
		tokens = max(shortestPass, tokens*3/4/shortestPass*shortestPass)
	}
	return tokens
}

// Passes is how many a prompt takes where everything is in memory.
func Passes(tokens int) int { return (tokens + passInMemory - 1) / passInMemory }

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
		StagingBytes: l.StagingBytes}
	all := l.SparseLayers * l.Experts
	working := func(tokens int) int64 { return int64(tokens) * l.RowBytes }
	spare := limit - p.ResidentBytes - p.KVBytes - ProgramBytes(limit)
	p.PassTokens = PassTokens(spare, int64(all)*l.ExpertBytes > spare, working)
	p.ScratchBytes = working(p.PassTokens) + ProgramBytes(limit)
	fixed := p.ResidentBytes + p.KVBytes + p.ScratchBytes + p.StagingBytes
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
	p.MemoryBytes = p.ResidentBytes + p.KVBytes + working(p.PassTokens) + p.StagingBytes + p.SlotBytes + processBytes + processExpertBytes*int64(all)
	p.TokensPerSecond = tokensPerSecond(m, l, p.Slots)
	p.FirstWordSeconds = firstWord(m, l, p.Slots, p.PassTokens)
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

// MultiplySeconds is the time of one token's products.
func (m Machine) MultiplySeconds(l Load) float64 {
	if m.Caches(l) {
		return atRates(l.Multiplied, m.CachedBytesPerSecond, m.WeightBytesPerSecond)
	}
	if len(l.Multiplied) == 0 {
		return (float64(l.TokenBytes) + float64(l.SparseLayers*l.PerToken)*float64(l.ExpertBytes)) / m.WeightBytesPerSecond
	}
	return atRates(l.Multiplied, m.KernelBytesPerSecond, m.WeightBytesPerSecond)
}

// Caches says whether the processor's last cache holds all that a text multiplies with.
func (m Machine) Caches(l Load) bool {
	experts := int64(l.SparseLayers*l.Experts) * l.ExpertBytes
	return len(m.CachedBytesPerSecond) > 0 && len(l.Multiplied) > 0 && l.TokenBytes+experts <= m.CacheBytes
}

// ProductSeconds is the time of a prompt's products, in passes of equal length.
func (m Machine) ProductSeconds(l Load, tokens, passes int) float64 {
	experts := l.passExperts(tokens, passes)
	if len(m.PassBytesPerSecond) == 0 || len(l.Weights) == 0 {
		ops := 2 * float64(l.TokenWeights) / m.OpsPerSecond
		if len(l.Weights) > 0 {
			ops = 2 * atRates(l.Weights, m.KernelOpsPerSecond, m.OpsPerSecond)
		}
		return max(l.wholeLayers()*float64(tokens)*ops, float64(passes)*(l.wholeLayers()*float64(l.TokenBytes)+experts*float64(l.ExpertBytes))/m.WeightBytesPerSecond)
	}
	perToken := max(float64(l.SparseLayers*l.PerToken)*l.wholeLayers(), 1)
	weights := map[string]int64{}
	for encoding, bytes := range l.Prompted {
		routed := float64(l.Routed[encoding])
		weights[encoding] = bytes - l.Routed[encoding] + int64(routed/perToken*experts)
	}
	seconds := l.wholeLayers() * (float64(passes)*atRates(weights, m.PassBytesPerSecond, m.WeightBytesPerSecond) +
		float64(tokens)*2*atRates(l.Weights, m.KernelOpsPerSecond, m.OpsPerSecond))
	if m.BeyondCache > 0 && !m.Caches(l) {
		seconds /= m.BeyondCache
	}
	return seconds
}

// AttentionSeconds is the time of a prompt's attention: each token sees those before it.
func (m Machine) AttentionSeconds(l Load, tokens int) float64 {
	if m.AttentionOpsPerSecond <= 0 {
		return 0
	}
	n, most := float64(tokens), float64(tokens)
	if l.IndexTopK > 0 {
		most = min(most, float64(l.IndexTopK))
	}
	return (most*most/2 + (n-most)*most) * l.wholeLayers() * float64(l.AttentionOps) / m.AttentionOpsPerSecond
}

// atRates is the time of amounts by encoding, each at its own rate or else at the usual one.
func atRates(amounts map[string]int64, rates map[string]float64, usual float64) (seconds float64) {
	for _, encoding := range slices.Sorted(maps.Keys(amounts)) { // sorted: sums in one order give one result
		rate := rates[encoding]
		if rate <= 0 {
			rate = usual
		}
		seconds += float64(amounts[encoding]) / rate
	}
	return seconds
}

// guessedShare is the part of the misses that speculative reads can bring while nothing else is read: the surer three quarters of a token's
// experts are named, of which 80 to 93 % are used.
const guessedShare = 0.65

// tokenSeconds is the time of one token: in all, computed, and read; each use of an expert finds it with probability hits.
//
// In a sparse layer reads begin when the router has chosen. Shared experts and those in memory are computed meanwhile, others as they
// land, the last of them after everything was read; and what was guessed has been read while the layer's attention was computed:
//
//	layer = attention + max(reads − guessed + one expert, all experts and the shared ones) + what reading costs beside
//
// Reads that go on at once share the disk's rate and wait together: they take what their bytes take, but no less than one by itself.
//
// The number of misses varies from layer to layer, and the larger of two times is larger on average than that of their averages: the sum
// goes over all numbers, as if misses were independent.
func tokenSeconds(m Machine, l Load, hits float64) (all, compute, read float64) {
	compute = m.MultiplySeconds(l) + float64(l.Layers)*m.LayerSeconds
	if l.SparseLayers == 0 || l.PerToken == 0 {
		return compute, compute, 0
	}
	layers := float64(l.SparseLayers)
	bytes := float64(l.TokenBytes) + layers*float64(l.PerToken)*float64(l.ExpertBytes)
	perByte := m.MultiplySeconds(l) / bytes
	experts := float64(l.PerToken) * float64(l.ExpertBytes) * perByte
	meanwhile := experts + float64(l.SharedBytes)/layers*perByte
	attention := compute/layers - meanwhile
	for misses := range l.PerToken + 1 {
		p := binomial(l.PerToken, misses, 1-hits)
		if misses == 0 || p == 0 {
			all += p * layers * (attention + meanwhile)
			continue
		}
		one := float64(l.ExpertBytes) / m.DiskBytesPerSecond
		reading := max(float64(misses)*one, m.ReadSeconds+one)
		guessed := min(attention, guessedShare*reading)
		read += p * layers * reading
		all += p * layers * (attention + max(reading-guessed+experts/float64(l.PerToken), meanwhile) + m.StreamSeconds)
	}
	return all, compute, read
}

// binomial is the probability of k among n.
func binomial(n, k int, p float64) float64 {
	b := math.Pow(p, float64(k)) * math.Pow(1-p, float64(n-k))
	for i := range k {
		b *= float64(n-i) / float64(k-i)
	}
	return b
}

// tokensPerSecond bounds the speed: at worst nothing overlaps, at best the shorter of computing and reading hides behind the longer.
func tokensPerSecond(m Machine, l Load, slots int) Range {
	hits := l.HitShare(slots)
	_, compute, slow := tokenSeconds(m, l, hits.Low)
	_, _, fast := tokenSeconds(m, l, hits.High)
	expected, _, _ := tokenSeconds(m, l, hits.Expected)
	r := Range{Low: 1 / (compute + slow + float64(l.SparseLayers)*m.StreamSeconds), High: 1 / max(compute, fast)}
	if hits.Low == 1 {
		r.Low = 1 / compute
	}
	r.Expected = min(max(1/expected, r.Low), r.High) // rounding, where all three are the same
	return r
}

// touched is the share of a layer's experts that some of tokens use.
func (l *Load) touched(tokens float64) float64 {
	uniform := func(tokens float64) float64 {
		return 1 - math.Pow(1-float64(l.PerToken)/float64(max(l.Experts, 1)), tokens)
	}
	before := TouchPoint{0, 0}
	for _, point := range l.Touched { // ascending
		if tokens <= float64(point.Tokens) {
			return before.Share + (point.Share-before.Share)*(tokens-float64(before.Tokens))/float64(point.Tokens-before.Tokens)
		}
		before = point
	}
	return max(before.Share, min(1, uniform(tokens)))
}

// passExperts is how many of all layers' experts a pass uses.
func (l *Load) passExperts(tokens, passes int) float64 {
	return l.wholeLayers() * float64(l.SparseLayers*l.Experts) * l.touched(float64(tokens)/float64(passes))
}

// wholeLayers is the share of the layers that a prompt's tokens go through whole: the last one only caches them, but for the last token.
func (l *Load) wholeLayers() float64 {
	if l.Layers < 2 {
		return 1
	}
	return float64(l.Layers-1) / float64(l.Layers)
}

// firstWord is the time until a prompt of PromptTokens has been computed: each pass over the model reads the experts that its
// tokens touch and that are not in memory, while it computes.
func firstWord(m Machine, l Load, slots, passTokens int) Range {
	tokens := max(l.PromptTokens, 1)
	passes := (tokens + passTokens - 1) / passTokens
	all := max(l.SparseLayers*l.Experts, 1)
	experts := l.passExperts(tokens, passes)
	compute := m.ProductSeconds(l, tokens, passes) + m.AttentionSeconds(l, tokens)
	compute += float64(passes*l.Layers)*m.LayerSeconds + float64(tokens*l.Layers)*m.RowSeconds
	read := func(inMemory float64) float64 {
		return float64(passes) * experts * (1 - inMemory) * float64(l.ExpertBytes) / m.DiskBytesPerSecond
	}
	warm := float64(slots) / float64(all)
	// Cold: the first pass finds nothing in memory, later ones what fits. Warm: every pass finds what fits.
	cold := experts * float64(l.ExpertBytes) / m.DiskBytesPerSecond * warm
	return Range{max(compute, read(warm)), max(compute, read(warm)+cold), compute + read(warm) + cold}
}
