// Package telemetry counts what the engine and the expert store do, cheaply enough to be always on, and hands out
// snapshots that never stop either of them: every counter is an atomic, so a snapshot may be a few events
// older in one field than in another, never torn. It knows nothing of what it counts: no files, no models, no windows.
package telemetry

import (
	"sync"
	"sync/atomic"
	"time"
)

// Tier says where an expert is. The numbers are sent to the window's atlas.
type Tier uint32

const (
	OnDisk  Tier = iota // not in memory
	Loading             // being read
	Cached              // in memory, may be evicted
	Pinned              // in memory, and a favourite of the usage history
)

// Memory names one use of the memory that the user's limit covers.
type Memory int

const (
	Resident Memory = iota // dense weights
	Slots                  // mapped expert memory
	Staging                // reads in flight that do not go straight into a slot
	KV                     // attention caches of all sessions
	Scratch                // the backend's working memory
	memoryKinds
)

// Recorder receives the counts. Its methods may be called from any goroutine. The zero value counts everything but heat; New
// makes one with an atlas.
type Recorder struct {
	hits, misses, joined, evictions           atomic.Uint64
	reads, readBytes, failedReads, retries    atomic.Uint64
	guessedReads, guessedUsed, guessedBytes   atomic.Uint64
	sweptReads                                atomic.Uint64
	waitNanos, tokens, tokenNanos             atomic.Uint64
	attentionNanos, expertNanos, otherNanos   atomic.Uint64
	latency                                   atomicHistogram
	waitAtToken, lastTokenWait, lastTokenTime atomic.Uint64
	freeSlots, leasedSlots                    atomic.Int64
	tierSlots                                 [Pinned + 1]atomic.Int64
	mappings                                  atomic.Int64

	layers, experts int
	heat, tiers     []atomic.Uint32 // [layers·experts]

	mu            sync.Mutex // guards what follows: memory changes a few times a minute
	limit, peak   int64
	used          [memoryKinds]int64
	notices       []string
	noticesByText map[string]bool
}

// New makes a recorder for a model of layers layers (those without experts included) of up to experts routed experts.
func New(layers, experts int) *Recorder {
	return &Recorder{layers: layers, experts: experts,
		heat: make([]atomic.Uint32, layers*experts), tiers: make([]atomic.Uint32, layers*experts)}
}

func (r *Recorder) cell(cells []atomic.Uint32, layer, expert int) *atomic.Uint32 {
	if layer < 0 || layer >= r.layers || expert < 0 || expert >= r.experts {
		return nil
	}
	return &cells[layer*r.experts+expert]
}

// Use counts one use of an expert: a hit if it was in memory when asked for.
func (r *Recorder) Use(layer, expert int, hit bool) {
	if hit {
		r.hits.Add(1)
	} else {
		r.misses.Add(1)
	}
	if c := r.cell(r.heat, layer, expert); c != nil {
		c.Add(1)
	}
}

// Joined counts a miss that another request's read, already under way, satisfied.
func (r *Recorder) Joined() { r.joined.Add(1) }

// Read counts one completed expert read of bytes bytes that took d.
func (r *Recorder) Read(bytes int64, d time.Duration) {
	r.reads.Add(1)
	r.readBytes.Add(uint64(bytes))
	r.latency.add(d)
}

// ReadRetried counts a read that failed once and is tried again, ReadFailed one given up.
func (r *Recorder) ReadRetried() { r.retries.Add(1) }
func (r *Recorder) ReadFailed()  { r.failedReads.Add(1) }

// Swept counts a read made for a prefill sweep; Read counts it too.
func (r *Recorder) Swept() { r.sweptReads.Add(1) }

// Guessed counts a speculative read; Read counts it too. GuessUsed counts the first use of what one brought.
func (r *Recorder) Guessed(bytes int64) { r.guessedReads.Add(1); r.guessedBytes.Add(uint64(bytes)) }
func (r *Recorder) GuessUsed()          { r.guessedUsed.Add(1) }

// Evicted counts an expert that left memory for another.
func (r *Recorder) Evicted() { r.evictions.Add(1) }

// Waited counts time for which an answer stood still because experts were not there yet.
func (r *Recorder) Waited(d time.Duration) { r.waitNanos.Add(uint64(max(d, 0))) }

// Spent adds computing time of answers, by kind; the time of waiting for experts comes through Waited.
func (r *Recorder) Spent(attention, experts, other time.Duration) {
	r.attentionNanos.Add(uint64(max(attention, 0)))
	r.expertNanos.Add(uint64(max(experts, 0)))
	r.otherNanos.Add(uint64(max(other, 0)))
}

// Token counts one generated token that took d in all.
func (r *Recorder) Token(d time.Duration) {
	r.tokens.Add(1)
	r.tokenNanos.Add(uint64(max(d, 0)))
	wait := r.waitNanos.Load()
	r.lastTokenWait.Store(wait - r.waitAtToken.Swap(wait))
	r.lastTokenTime.Store(uint64(max(d, 0)))
}

// SetTier moves an expert from one tier to another.
func (r *Recorder) SetTier(layer, expert int, from, to Tier) {
	if from != OnDisk {
		r.tierSlots[from].Add(-1)
	}
	if to != OnDisk {
		r.tierSlots[to].Add(1)
	}
	if c := r.cell(r.tiers, layer, expert); c != nil {
		c.Store(uint32(to))
	}
}

// SetSlots says how many slots hold nothing and how many are leased at the moment, and how many mappings there are.
func (r *Recorder) SetSlots(free, leased, mappings int) {
	r.freeSlots.Store(int64(free))
	r.leasedSlots.Store(int64(leased))
	r.mappings.Store(int64(mappings))
}

// SetLimit says how many bytes the user allows.
func (r *Recorder) SetLimit(bytes int64) {
	r.mu.Lock()
	r.limit = bytes
	r.mu.Unlock()
}

// SetMemory says how many bytes a kind of use takes now. Callers report growth before they allocate and shrinking
// after they free, so that the peak is never below the truth.
func (r *Recorder) SetMemory(kind Memory, bytes int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used[kind] = bytes
	var total int64
	for _, b := range r.used {
		total += b
	}
	r.peak = max(r.peak, total)
}

// Notice records a sentence for the user about something that is not as it should be (reads that cannot bypass the
// page cache, a damaged history). Each text is kept once.
func (r *Recorder) Notice(text string) {
	if text == "" {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.noticesByText[text] || len(r.notices) >= maxNotices {
		return
	}
	if r.noticesByText == nil {
		r.noticesByText = map[string]bool{}
	}
	r.noticesByText[text] = true
	r.notices = append(r.notices, text)
}

// maxNotices bounds what a failing disk can make a session remember.
const maxNotices = 64

// Snapshot is the state of the counters at one moment. All counts are since the model was loaded.
type Snapshot struct {
	Hits      uint64 `json:"hits"`
	Misses    uint64 `json:"misses"`
	Joined    uint64 `json:"joined"` // misses that shared another request's read
	Evictions uint64 `json:"evictions"`

	Reads       uint64    `json:"reads"`
	ReadBytes   uint64    `json:"readBytes"`
	Retries     uint64    `json:"retries"`
	FailedReads uint64    `json:"failedReads"`
	SweptReads  uint64    `json:"sweptReads"` // of Reads: for prefill
	Latency     Histogram `json:"latency"`

	GuessedReads uint64 `json:"guessedReads"` // of Reads: speculative
	GuessedBytes uint64 `json:"guessedBytes"`
	GuessedUsed  uint64 `json:"guessedUsed"`

	Tokens            uint64        `json:"tokens"`
	TokenTime         time.Duration `json:"tokenNanos"`     // sum over tokens
	Wait              time.Duration `json:"waitNanos"`      // sum: answers stood still for experts
	Attention         time.Duration `json:"attentionNanos"` // sums of computing: attention with norms, router and shared experts
	Experts           time.Duration `json:"expertNanos"`    // routed ones
	Other             time.Duration `json:"otherNanos"`
	LastTokenTime     time.Duration `json:"lastTokenNanos"`
	LastTokenWaitTime time.Duration `json:"lastTokenWaitNanos"`

	LoadingSlots int64 `json:"loadingSlots"`
	CachedSlots  int64 `json:"cachedSlots"`
	PinnedSlots  int64 `json:"pinnedSlots"`
	FreeSlots    int64 `json:"freeSlots"`
	LeasedSlots  int64 `json:"leasedSlots"` // of the cached and pinned ones: in use at this moment
	Mappings     int64 `json:"mappings"`

	LimitBytes    int64 `json:"limitBytes"`
	ResidentBytes int64 `json:"residentBytes"`
	SlotBytes     int64 `json:"slotBytes"`
	StagingBytes  int64 `json:"stagingBytes"`
	KVBytes       int64 `json:"kvBytes"`
	ScratchBytes  int64 `json:"scratchBytes"`
	UsedBytes     int64 `json:"usedBytes"` // the sum of the five above
	PeakBytes     int64 `json:"peakBytes"` // its highest value so far

	GPU *GPU `json:"gpu"` // nil where the CPU computes

	Notices []string `json:"notices,omitempty"`
}

// GPU is what a graphics processor has done since the model was loaded. Blocks are those of routed experts.
type GPU struct {
	Blocks        uint64  `json:"blocks"`
	FallenBack    uint64  `json:"fallenBack"` // calls that it did not complete and the CPU repeated
	Experts       uint64  `json:"experts"`
	SetUpMillis   float64 `json:"setupMillis"` // sums
	GPUMillis     float64 `json:"gpuMillis"`   // by its own clock
	ScatterMillis float64 `json:"scatterMillis"`
	CommitMillis  float64 `json:"commitMillis"` // committing the residency set
}

// Snapshot reads the counters.
func (r *Recorder) Snapshot() Snapshot {
	s := Snapshot{
		Hits: r.hits.Load(), Misses: r.misses.Load(), Joined: r.joined.Load(), Evictions: r.evictions.Load(),
		Reads: r.reads.Load(), ReadBytes: r.readBytes.Load(), Retries: r.retries.Load(), FailedReads: r.failedReads.Load(),
		SweptReads: r.sweptReads.Load(), Latency: r.latency.load(),
		GuessedReads: r.guessedReads.Load(), GuessedBytes: r.guessedBytes.Load(), GuessedUsed: r.guessedUsed.Load(),
		Tokens: r.tokens.Load(), TokenTime: time.Duration(r.tokenNanos.Load()), Wait: time.Duration(r.waitNanos.Load()),
		Attention: time.Duration(r.attentionNanos.Load()), Experts: time.Duration(r.expertNanos.Load()), Other: time.Duration(r.otherNanos.Load()),
		LastTokenTime: time.Duration(r.lastTokenTime.Load()), LastTokenWaitTime: time.Duration(r.lastTokenWait.Load()),
		LoadingSlots: r.tierSlots[Loading].Load(), CachedSlots: r.tierSlots[Cached].Load(), PinnedSlots: r.tierSlots[Pinned].Load(),
		FreeSlots: r.freeSlots.Load(), LeasedSlots: r.leasedSlots.Load(), Mappings: r.mappings.Load(),
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	s.LimitBytes, s.PeakBytes = r.limit, r.peak
	s.ResidentBytes, s.SlotBytes, s.StagingBytes, s.KVBytes, s.ScratchBytes =
		r.used[Resident], r.used[Slots], r.used[Staging], r.used[KV], r.used[Scratch]
	s.UsedBytes = s.ResidentBytes + s.SlotBytes + s.StagingBytes + s.KVBytes + s.ScratchBytes
	s.Notices = append([]string(nil), r.notices...)
	return s
}

// HitRate is the share of expert uses that found the expert in memory, 0 before the first use.
func (s *Snapshot) HitRate() float64 {
	if s.Hits+s.Misses == 0 {
		return 0
	}
	return float64(s.Hits) / float64(s.Hits+s.Misses)
}

// Atlas is the layer × expert picture: how often each expert was used and where it is.
type Atlas struct {
	Layers, Experts int
	Heat            []uint32 // [Layers·Experts], uses since the model was loaded
	Tiers           []uint8  // [Layers·Experts], a Tier each
}

// Atlas reads the heat and tier of every expert; callers ask a few times a second, not per token.
func (r *Recorder) Atlas() Atlas {
	a := Atlas{Layers: r.layers, Experts: r.experts, Heat: make([]uint32, len(r.heat)), Tiers: make([]uint8, len(r.tiers))}
	for i := range r.heat {
		a.Heat[i] = r.heat[i].Load()
		a.Tiers[i] = uint8(r.tiers[i].Load())
	}
	return a
}
