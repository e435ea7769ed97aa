// Package engine turns token ids into text with a model: it loads a container's weights, runs the one forward pass over a compute backend,
// keeps each conversation's keys and values, chooses tokens, and decides when an answer ends.
//
// It must never know how a backend calculates, how experts come into memory (it asks an Experts for leases and computes with what
// has landed), what a chat template looks like, or that there is a window.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"

	"colibri/backend/compute"
	"colibri/backend/container"
	"colibri/backend/hugepages"
	"colibri/backend/metal"
	"colibri/backend/residency"
	"colibri/backend/telemetry"
	"colibri/backend/tokenizer"
)

// Options say how a model is to run.
type Options struct {
	Backend     string // "auto" (or ""), "cpu", "metal"
	MemoryBytes int64  // the most memory the model may take, its conversations included; 0: what the machine can spare
	Drafts      DraftMode
	Guesses     GuessMode
	Readers     int            // concurrent reads of experts; 0: as many as residency finds right
	History     bool           // remember beside the model which experts were used and what size of their memory was best, and begin with that
	Precise     bool           // products keep their activations, for evaluations: see cpu.Backend.KeepActivations
	Progress    func(Progress) // optional: how far loading is; called from several goroutines, never at the same time
}

// DraftMode says whether the model's multi-token-prediction layer, if it has one, is used to draft tokens. The text is the same either way.
type DraftMode uint8

const (
	DraftsMeasured DraftMode = iota // as many as make this machine fastest, none included
	DraftsOff                       // the layer is not even loaded
	DraftsAlways                    // at least one: for measurements
)

// Progress is how far loading is, in bytes.
type Progress struct{ DoneBytes, TotalBytes int64 }

// Model is a loaded model. Its methods may be called from any goroutine.
type Model struct {
	config    *container.Config // as used: see usedConfig
	tokenizer *tokenizer.Tokenizer
	backend   compute.Backend
	recorder  *telemetry.Recorder
	weights   weights
	experts   Experts
	store     *residency.Store // behind experts; nil in a model without sparse layers
	streams   bool             // some experts may be on the disk
	memory    []*mapping
	identity  string
	history   *residency.Usage // nil: not kept
	learned   learned
	drafts    bool
	budget    budget
	governing sync.WaitGroup
	stop      context.CancelFunc // ends the governor

	// What follows belongs to whoever has the turn: a forward pass uses the backend and the working memory alone.
	turns   chan struct{}
	scratch scratch
	times   times
	tied    int // the first position of the last forward pass that chose among equal index scores, or noTie
	rows    []compute.Row
	ids     []int32
	caches  []compute.Cache
	batch   []segment
	groups  expertGroups
	pending []compute.Pending
	calls   callPool
	// The calls under way; kept here so that a token allocates nothing.
	call      compute.LayerCall
	selection compute.Selection // its rows' part of scratch.selection
	combine   compute.CombineCall
	headCall  compute.HeadCall
	pace      *pace
	guesser   guesser

	sessions sync.Mutex
	open     map[*Session]struct{}
	closed   atomic.Bool
}

// layerCount is the number of layers that are run: the main ones, and the first multi-token-prediction layer if there is one.
func layerCount(c *container.Config) int { return c.Layers + c.MTPLayers }

func (m *Model) layerCount() int { return layerCount(m.config) }

// usedConfig is a container's configuration without what the engine never uses: an indexer that could never leave a
// position out, and multi-token-prediction layers after the first, or all of them.
func usedConfig(c *container.Config, drafts DraftMode) *container.Config {
	used := *c
	if used.MaxPositions <= used.Attention.Index.TopK {
		used.Attention.Index = container.Indexer{}
	}
	used.MTPLayers = min(used.MTPLayers, 1)
	if drafts == DraftsOff {
		used.MTPLayers = 0
	}
	return &used
}

// scratchPositions is the context for which the backend's working memory is counted; beyond it, it grows by bytes per position.
const scratchPositions = 32 << 10

// scratchSize chooses the longest batch, and gives the exact size of the working memory and what the backend adds to it.
func scratchSize(c *container.Config, backend compute.Backend, fromDisk bool, spareBytes int64) (rows int, bytes, backendBytes int64) {
	measure := func(rows int) int64 {
		bytes, backendBytes = measureScratch(c, rows), backend.ScratchBytes(c, rows, min(c.MaxPositions, scratchPositions))
		return bytes + backendBytes
	}
	rows = residency.PassTokens(spareBytes, fromDisk, measure)
	measure(rows)
	return rows, bytes, backendBytes
}

// Load opens a model directory, checks that it can run within the options, and reads its weights.
func Load(ctx context.Context, dir string, options Options) (*Model, error) {
	source, err := container.Open(dir)
	if err != nil {
		return nil, err
	}
	defer source.Close()
	m := &Model{
		config: usedConfig(source.Config, options.Drafts),
		turns:  make(chan struct{}, 1), open: map[*Session]struct{}{},
	}
	if err := m.load(ctx, source, options); err != nil {
		return nil, errors.Join(err, m.release())
	}
	return m, nil
}

func (m *Model) load(ctx context.Context, source *container.Container, options Options) error {
	c := m.config
	m.drafts, m.pace = c.MTPLayers > 0, newPace(options.Drafts)
	m.guesser = newGuesser(c, options.Guesses)
	m.recorder = telemetry.New(layerCount(c), c.MoE.Experts)
	for _, note := range source.Notes {
		m.recorder.Notice(note)
	}
	var err error
	if m.identity, err = source.Identity(); err != nil {
		return err
	}
	if m.tokenizer, err = loadTokenizer(source); err != nil {
		return err
	}
	list, err := wanted(c, source.Resident(), &m.weights)
	if err != nil {
		return err
	}
	var notice string
	m.backend, notice, err = chooseBackend(options.Backend, func(b compute.Backend) string {
		return unsupported(b, list, source.ExpertLayouts())
	})
	if err != nil {
		return fmt.Errorf("%s: %w", source.Dir, err)
	}
	if b, rounds := m.backend.(interface{ KeepActivations() }); rounds && options.Precise {
		b.KeepActivations()
	}
	m.recorder.Notice(notice)

	sizes := make([]int64, len(list))
	var total int64
	for i := range list {
		sizes[i] = list[i].bytes()
		total += sizes[i]
	}
	places, mappings := pack(sizes, carveAlignment)
	m.budget.limitBytes = options.MemoryBytes
	if options.MemoryBytes == 0 {
		m.budget.limitBytes = automaticLimit(m.backend, m.recorder)
	}
	m.recorder.SetLimit(m.budget.limitBytes)
	need := Need{CacheBytes: cacheBytes(c, layerCount(c), min(firstCapacity, c.MaxPositions))}
	for _, size := range mappings {
		need.WeightBytes += size
	}
	spare := int64(math.MaxInt64)
	if limit := m.budget.limitBytes; limit > 0 {
		spare = limit - need.Total() - residency.ProgramBytes(limit)
	}
	rows, scratchBytes, backendBytes := scratchSize(c, m.backend, source.ExpertBytes() > spare, spare)
	need.ScratchBytes = scratchBytes + backendBytes
	m.budget.need = need
	m.recorder.SetMemory(telemetry.Resident, need.WeightBytes)
	m.recorder.SetMemory(telemetry.Scratch, need.ScratchBytes)
	if err := m.openStore(source, options); err != nil {
		return err
	}

	report := reporter(options.Progress, total)
	for _, size := range append(mappings, scratchBytes) {
		memory, err := newMapping(m.backend, size)
		if err != nil {
			return err
		}
		m.memory = append(m.memory, memory)
	}
	for _, weights := range m.memory[:len(mappings)] {
		hugepages.Prefer(weights.bytes)
	}
	m.scratch.carve(&carver{bytes: m.memory[len(mappings)].bytes}, c, rows)
	err = inParallel(ctx, len(list), func(i int) error {
		p := &list[i]
		p.memory = m.memory[places[i].mapping].bytes[places[i].offset:][:sizes[i]]
		if err := p.load(source); err != nil {
			return err
		}
		report(sizes[i])
		return nil
	})
	if err != nil {
		return err
	}
	if c.TiedEmbeddings {
		m.weights.head = m.weights.embedding
	}
	m.weights.mtp.head = draftHead(&m.weights.head)
	if m.store != nil && m.budget.limitBytes > 0 {
		governing, stop := context.WithCancel(context.Background())
		m.stop = stop
		m.governing.Go(func() { m.govern(governing) })
	}
	return nil
}

// reporter adds up bytes and tells progress.
func reporter(progress func(Progress), total int64) func(int64) {
	var mu sync.Mutex
	var done int64
	return func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		done += n
		if progress != nil {
			progress(Progress{done, total})
		}
	}
}

// maxTokenizerBytes is far above any published tokenizer.json (20 MB).
const maxTokenizerBytes = 256 << 20

// loadTokenizer is nil without tokenizer.json: such a model runs on ids.
func loadTokenizer(source *container.Container) (*tokenizer.Tokenizer, error) {
	text, err := source.Text("tokenizer.json", maxTokenizerBytes)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t, err := tokenizer.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source.Dir, err)
	}
	return t, nil
}

// turn runs work while nothing else uses the backend; it waits for its turn, or for ctx.
func (m *Model) turn(ctx context.Context, work func() error) error {
	select {
	case m.turns <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-m.turns }()
	if m.closed.Load() {
		return errClosed
	}
	return work()
}

// Config is the model's configuration as it is used.
func (m *Model) Config() *container.Config { return m.config }

// Tokenizer is the model's tokenizer, nil if its directory has no tokenizer.json.
func (m *Model) Tokenizer() *tokenizer.Tokenizer { return m.tokenizer }

// Stats are the counters at this moment.
func (m *Model) Stats() telemetry.Snapshot {
	s := m.recorder.Snapshot()
	if gpu, ok := m.backend.(*metal.Backend); ok {
		s.GPU = gpuStats(gpu.Counters())
	}
	return s
}

// Recorder is where the model counts.
func (m *Model) Recorder() *telemetry.Recorder { return m.recorder }

// Backend is the name of the processor that computes.
func (m *Model) Backend() string { return m.backend.Name() }

// Identity names the weights: caches made with one model are of no use to another.
func (m *Model) Identity() string { return m.identity }

// Close ends all sessions and gives everything back. An answer under way ends with an error after its current token.
func (m *Model) Close() error {
	if m.closed.Swap(true) {
		return nil
	}
	m.sessions.Lock()
	open := make([]*Session, 0, len(m.open))
	for s := range m.open {
		open = append(open, s)
	}
	m.sessions.Unlock()
	var errs []error
	for _, s := range open {
		errs = append(errs, s.Close())
	}
	m.turns <- struct{}{} // the last forward pass is over
	return errors.Join(append(errs, m.release())...)
}

// release gives back what load got, in any state of completion.
func (m *Model) release() error {
	var errs []error
	if m.stop != nil {
		m.stop()
		m.governing.Wait()
	}
	if m.store != nil {
		m.remember()
		errs = append(errs, m.store.Close())
	}
	for _, memory := range m.memory {
		errs = append(errs, memory.free())
	}
	m.memory = nil
	if m.backend != nil {
		errs = append(errs, m.backend.Close())
	}
	return errors.Join(errs...)
}
