package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"time"

	"colibri/backend/container"
	"colibri/backend/engine"
	"colibri/backend/residency"
	"colibri/backend/telemetry"
)

// streamReport is what colibri bench --stream measures: one model under growing memory limits, beside what it does with everything
// resident and what the disk delivers. Names of the JSON object are a contract.
type streamReport struct {
	Machine       string        `json:"machine"`
	Model         string        `json:"model"`
	Backend       string        `json:"backend"`
	RecordBytes   int64         `json:"record_bytes"`   // of one expert on the disk
	ExpertCount   int           `json:"experts"`        // of all layers
	ComputeMillis float64       `json:"compute_ms"`     // per token, nothing read
	ComputeFrom   string        `json:"compute_source"` // "everything resident", or what stands in for it
	Tokens        int           `json:"tokens"`
	TokenHash     string        `json:"token_hash"`
	Points        []streamPoint `json:"points"`
	// NonDecreasing: no limit was slower than a smaller one, but for noise.
	NonDecreasing bool `json:"non_decreasing"`
}

// streamPoint is one limit. Times are per token.
type streamPoint struct {
	LimitBytes         int64   `json:"limit_bytes"`
	Slots              int     `json:"slots"`
	Readers            int     `json:"readers"`
	TokensPerSecond    float64 `json:"tokens_per_second"`
	WallMillis         float64 `json:"wall_ms"`
	WaitMillis         float64 `json:"wait_ms"`
	Misses             float64 `json:"misses"` // per token; experts whose guess came in time are not among them
	MissedBytes        float64 `json:"missed_bytes"`
	ReadBytes          float64 `json:"read_bytes"` // guesses included
	GuessedReads       uint64  `json:"guessed_reads"`
	GuessedUsed        uint64  `json:"guessed_used"`
	DiskBytesPerSecond float64 `json:"disk_bytes_per_second"` // direct reads of records, before and after each turn
	ReadMillis         float64 `json:"read_ms"`               // missed bytes at that rate
	RatioToSum         float64 `json:"ratio_to_sum"`          // wall / (compute + read)
	RatioToLarger      float64 `json:"ratio_to_larger"`       // wall / max(compute, read)
	ExactBytes         bool    `json:"exact_bytes"`           // what was read is the records of misses and guesses, to the byte
	PeakBytes          int64   `json:"peak_bytes"`            // of the limit, as counted
	TokenHash          string  `json:"token_hash"`
}

type streamFlags struct {
	modelFlags
	limits       string
	prompt       int
	warm, tokens int
	readers      int
	guesses      string
	asJSON       bool
	mode         engine.GuessMode
	limitBytes   []int64
	recordBytes  int64
	slotBytes    int64
	description  *container.Description
}

// noise is how much slower a larger limit may measure without being called slower.
const noise = 0.05

func streamCommand(ctx context.Context, args []string, out, notes io.Writer) error {
	var f streamFlags
	flags := flag.NewFlagSet("bench --stream", flag.ContinueOnError)
	flags.Bool("stream", true, "this benchmark")
	flags.StringVar(&f.dir, "model", "", "`DIR` of a container (default: the bundled model)")
	flags.StringVar(&f.backend, "backend", "auto", "auto, cpu or metal")
	flags.StringVar(&f.limits, "limits", "", "memory limits, such as `600MB,1GB` (default: one token's experts, 10, 25 and 50 % of them)")
	flags.IntVar(&f.prompt, "prompt", 4, "`N` random tokens of prompt")
	// While a cache of thousands of experts fills, each new record costs page faults and its checksum once: 24 tokens were too few for that.
	flags.IntVar(&f.warm, "warm", 72, "tokens that are generated before measuring, `N`")
	flags.IntVar(&f.tokens, "tokens", 64, "tokens that are measured, `N`")
	flags.IntVar(&f.readers, "readers", 0, "concurrent reads, `N` (default: the program's own)")
	flags.StringVar(&f.guesses, "guesses", "measured", "speculative reads: `MODE` measured, on or off")
	flags.BoolVar(&f.asJSON, "json", false, "print one JSON object")
	rest, err := parse(flags, args, notes)
	switch {
	case err != nil:
		return err
	case len(rest) > 0:
		return usagef("unexpected argument %q", rest[0])
	case f.prompt < 1 || f.warm < 1 || f.tokens < 1 || f.readers < 0:
		return usagef("--prompt, --warm and --tokens must be at least 1, --readers not negative")
	}
	modes := map[string]engine.GuessMode{"measured": engine.GuessMeasured, "on": engine.GuessAlways, "off": engine.GuessOff}
	mode, ok := modes[f.guesses]
	if !ok {
		return usagef("--guesses is measured, on or off, not %q", f.guesses)
	}
	f.mode = mode
	for _, text := range strings.FieldsFunc(f.limits, func(r rune) bool { return r == ',' }) {
		n, err := parseBytes(text)
		if err != nil {
			return usageError{err.Error()}
		}
		f.limitBytes = append(f.limitBytes, n)
	}
	report, err := f.measure(ctx, notes)
	if err != nil {
		return err
	}
	if f.asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "  ")
		err = encoder.Encode(report)
	} else {
		err = report.print(out)
	}
	return errors.Join(err, report.check())
}

// measure generates the same text under every limit, a few tokens at a time in turn, with the disk measured before and after each turn: speeds of
// disks and machines drift by more within a minute than what is to be seen.
func (f *streamFlags) measure(ctx context.Context, notes io.Writer) (r *streamReport, err error) {
	dir, err := f.path(ctx)
	if err != nil {
		return nil, err
	}
	f.dir = dir
	if err := f.records(); err != nil {
		return nil, err
	}
	r = &streamReport{Machine: fmt.Sprintf("%s/%s, %d threads", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Model: dir,
		RecordBytes: f.recordBytes, ExpertCount: f.description.SparseLayers * f.description.Experts, Tokens: f.tokens}
	fmt.Fprintln(notes, "everything resident …")
	resident, err := f.open(ctx, 0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, resident.close()) }() // closed already, but after an error
	// One pass brings the experts of the text into memory.
	for _, err := range f.blocks(ctx, resident) {
		if err != nil {
			return nil, err
		}
	}
	if len(f.limitBytes) == 0 {
		f.defaultLimits(resident.model.Config(), resident.model.Stats())
	}
	slices.Sort(f.limitBytes)
	groups, err := f.groups(resident, notes)
	if err != nil {
		return nil, err
	}
	for _, group := range groups {
		if err := f.takeTurns(ctx, group, notes); err != nil {
			return nil, err
		}
	}
	r.Backend, r.TokenHash = resident.backend, resident.hash
	r.ComputeMillis, r.ComputeFrom = f.millis(resident.sum.wall), "everything resident"
	if resident.sum.misses > 0 {
		r.ComputeMillis, r.ComputeFrom = f.millis(resident.sum.wall-resident.sum.wait), "time not spent waiting for the disk"
	}
	r.NonDecreasing = true
	best := 0.0
	for _, group := range groups {
		for _, run := range group {
			if run == resident {
				continue
			}
			p := f.point(run, r.ComputeMillis)
			r.Points = append(r.Points, p)
			r.NonDecreasing = r.NonDecreasing && p.TokensPerSecond >= best*(1-noise)
			best = max(best, p.TokensPerSecond)
		}
	}
	return r, nil
}

// groups are the runs that are measured in turn: all together where memory holds them at the same time, otherwise each by itself.
func (f *streamFlags) groups(resident *streamRun, notes io.Writer) ([][]*streamRun, error) {
	all, sum := []*streamRun{resident}, resident.model.Stats().UsedBytes
	for _, limit := range f.limitBytes {
		all = append(all, &streamRun{limit: limit})
		sum += limit
	}
	state, err := residency.ReadMemory()
	if err != nil {
		return nil, err
	}
	if sum <= residency.Budget(residency.Machine{MemoryBytes: state.TotalBytes, OthersBytes: state.OthersBytes}) {
		return [][]*streamRun{all}, nil
	}
	fmt.Fprintf(notes, "one limit after the other: together they would take %s\n", formatBytes(sum))
	var groups [][]*streamRun
	for _, run := range all {
		groups = append(groups, []*streamRun{run})
	}
	return groups, nil
}

// records finds the size of the experts' records, which have to be equal for the bytes that are read to be checked.
func (f *streamFlags) records() error {
	source, err := container.Open(f.dir)
	if err != nil {
		return err
	}
	defer source.Close()
	if f.description, err = source.Describe(); err != nil {
		return err
	}
	for layer, sparse := range source.Config.Sparse[:source.Config.Layers] {
		if !sparse {
			continue
		}
		for index := range source.Config.MoE.Experts {
			e, err := source.Expert(layer, index)
			if err != nil {
				return err
			}
			var bytes int64
			for _, read := range e.Reads {
				bytes += read.Bytes
			}
			if f.recordBytes != 0 && bytes != f.recordBytes {
				return fmt.Errorf("%s: experts of different sizes (%d and %d bytes) cannot be benchmarked in this way", f.dir, f.recordBytes, bytes)
			}
			f.recordBytes, f.slotBytes = bytes, e.Layout.SlotBytes
		}
	}
	if f.recordBytes == 0 {
		return fmt.Errorf("%s has no routed experts", f.dir)
	}
	return nil
}

// streamRun is one model that generates the benchmark's text.
type streamRun struct {
	limit   int64 // 0: as much as the machine has
	model   *engine.Model
	backend string
	sum     streamBlock // of its turns
	disk    []float64   // bytes a second, before and after each turn
	hash    string
	slotted int64              // bytes of slots in use at the end
	end     telemetry.Snapshot // after closing: no read is under way any more
}

// open loads the model under a limit. Drafts are off: a draft's experts are no token's.
func (f *streamFlags) open(ctx context.Context, limit int64) (*streamRun, error) {
	model, err := engine.Load(ctx, f.dir, engine.Options{Backend: f.backend, MemoryBytes: limit, Drafts: engine.DraftsOff, Guesses: f.mode, Readers: f.readers})
	if err != nil {
		return nil, err
	}
	return &streamRun{limit: limit, model: model, backend: model.Backend()}, nil
}

// close may be called again.
func (r *streamRun) close() error {
	if r.model == nil {
		return nil
	}
	r.slotted = r.model.Stats().SlotBytes
	err := r.model.Close()
	r.end = r.model.Stats()
	r.model = nil
	return err
}

// streamBlock is what some tokens took.
type streamBlock struct {
	wall, wait                                      time.Duration
	misses, joined, readBytes, guessed, guessedUsed uint64
}

// blockTokens is the length of a turn.
const blockTokens = 8

func blockOf(wall time.Duration, after, before *telemetry.Snapshot) streamBlock {
	return streamBlock{wall: wall, wait: after.Wait - before.Wait, misses: after.Misses - before.Misses, joined: after.Joined - before.Joined,
		readBytes: after.ReadBytes - before.ReadBytes, guessed: after.GuessedReads - before.GuessedReads, guessedUsed: after.GuessedUsed - before.GuessedUsed}
}

func (b *streamBlock) add(o *streamBlock) {
	b.wall, b.wait = b.wall+o.wall, b.wait+o.wait
	b.misses, b.joined, b.readBytes = b.misses+o.misses, b.joined+o.joined, b.readBytes+o.readBytes
	b.guessed, b.guessedUsed = b.guessed+o.guessed, b.guessedUsed+o.guessedUsed
}

// blocks generates the benchmark's tokens in a new conversation, a turn at a time: first, as a block of nothing, those that only warm up. Whoever
// ranges over it may let any time pass between two of them.
func (f *streamFlags) blocks(ctx context.Context, run *streamRun) iter.Seq2[streamBlock, error] {
	return func(yield func(streamBlock, error) bool) {
		stopped := errors.New("nobody wants more blocks")
		err := f.generate(ctx, run, func(b streamBlock) error {
			if !yield(b, nil) {
				return stopped
			}
			return nil
		})
		if err != nil && !errors.Is(err, stopped) {
			yield(streamBlock{}, err)
		}
	}
}

func (f *streamFlags) generate(ctx context.Context, run *streamRun, turn func(streamBlock) error) (err error) {
	session, err := run.model.NewSession()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	random := rand.New(rand.NewPCG(1, 2))
	prompt := make([]int32, f.prompt)
	for i := range prompt {
		prompt[i] = random.Int32N(int32(run.model.Config().Vocabulary))
	}
	var before telemetry.Snapshot
	var began time.Time
	count := 0
	result, err := session.Generate(ctx, engine.Request{Prompt: prompt, MaxTokens: f.warm + f.tokens, Sampling: engine.Greedy()}, func(piece engine.Piece) error {
		if piece.ID < 0 {
			return nil
		}
		measured := count + 1 - f.warm
		if count++; measured < 0 || measured%blockTokens != 0 && measured != f.tokens {
			return nil
		}
		var b streamBlock
		if measured > 0 {
			wall, after := time.Since(began), run.model.Stats()
			b = blockOf(wall, &after, &before)
		}
		if err := turn(b); err != nil {
			return err
		}
		before, began = run.model.Stats(), time.Now()
		return nil
	})
	switch {
	case err != nil:
		return err
	case result.FinishReason == engine.FinishCancelled:
		return context.Cause(ctx)
	case len(result.IDs) != f.warm+f.tokens:
		return fmt.Errorf("%d tokens were asked for and %d came (%s)", f.warm+f.tokens, len(result.IDs), result.FinishReason)
	}
	var tokens tokenHash
	err = tokens.round(result.IDs)
	run.hash = tokens.hex
	return err
}

// takeTurns generates the text with every run of a group, in turn, and closes them.
func (f *streamFlags) takeTurns(ctx context.Context, group []*streamRun, notes io.Writer) (err error) {
	defer func() {
		for _, run := range group {
			err = errors.Join(err, run.close())
		}
	}()
	type turns struct {
		*streamRun
		next func() (streamBlock, error, bool)
	}
	var left []turns
	for _, run := range group {
		if run.model == nil {
			fmt.Fprintf(notes, "%s …\n", formatBytes(run.limit))
			opened, err := f.open(ctx, run.limit)
			if err != nil {
				return err
			}
			*run = *opened
		}
		next, stop := iter.Pull2(f.blocks(ctx, run))
		defer stop()
		left = append(left, turns{run, next})
		if _, err, _ := next(); err != nil { // warm now
			return err
		}
	}
	rate, err := f.disk(ctx)
	for err == nil && len(left) > 0 {
		t := left[0]
		left = left[1:]
		block, failed, more := t.next()
		if failed != nil {
			return failed
		}
		if !more {
			continue
		}
		t.sum.add(&block)
		before := rate
		if rate, err = f.disk(ctx); err == nil {
			t.disk = append(t.disk, before, rate)
		}
		left = append(left, t)
	}
	return err
}

// disk measures direct reads of records for a moment.
func (f *streamFlags) disk(ctx context.Context) (bytesPerSecond float64, err error) {
	return residency.MeasureDisk(ctx, f.dir, residency.Probe{PieceBytes: f.recordBytes, TotalBytes: math.MaxInt64, Readers: 8, Time: 300 * time.Millisecond})
}

func (f *streamFlags) millis(d time.Duration) float64 { return float64(d) / 1e6 / float64(f.tokens) }

// defaultLimits leave room for shares of the experts beside what the model takes with everything resident.
func (f *streamFlags) defaultLimits(c *container.Config, s telemetry.Snapshot) {
	all := float64(f.description.SparseLayers*f.description.Experts) * float64(f.slotBytes)
	fixed := float64(s.ResidentBytes + s.KVBytes + s.ScratchBytes + s.StagingBytes)
	for _, share := range []float64{float64(c.MoE.PerToken) / float64(c.MoE.Experts), 0.10, 0.25, 0.50} {
		// The engine keeps a sixteenth, 48 MiB at most, for the program itself.
		bytes := fixed + share*all
		f.limitBytes = append(f.limitBytes, int64(min(bytes*16/15, bytes+48<<20)))
	}
}

// point is what a run measured.
func (f *streamFlags) point(run *streamRun, computeMillis float64) streamPoint {
	sum, end, n := &run.sum, &run.end, float64(f.tokens)
	var disk float64
	for _, rate := range run.disk {
		disk += rate / float64(len(run.disk))
	}
	// One conversation: what joined a read under way joined a guess.
	missed := float64(sum.misses-sum.joined) + float64(sum.guessedUsed)
	p := streamPoint{
		LimitBytes: run.limit, Slots: int(run.slotted / f.slotBytes), TokenHash: run.hash, PeakBytes: end.PeakBytes,
		WallMillis: f.millis(sum.wall), WaitMillis: f.millis(sum.wait), TokensPerSecond: n / sum.wall.Seconds(),
		Misses: float64(sum.misses) / n, MissedBytes: missed * float64(f.recordBytes) / n, ReadBytes: float64(sum.readBytes) / n,
		GuessedReads: sum.guessed, GuessedUsed: sum.guessedUsed, DiskBytesPerSecond: disk, Readers: f.readers,
		ExactBytes: end.ReadBytes == end.Reads*uint64(f.recordBytes) && end.Reads == end.Misses-end.Joined+end.GuessedReads,
	}
	p.ReadMillis = p.MissedBytes / p.DiskBytesPerSecond * 1e3
	p.RatioToSum = p.WallMillis / (computeMillis + p.ReadMillis)
	p.RatioToLarger = p.WallMillis / max(computeMillis, p.ReadMillis)
	return p
}

// check says what must never be: other words at another limit, bytes read that nobody asked for.
func (r *streamReport) check() error {
	var errs []error
	for _, p := range r.Points {
		if p.TokenHash != r.TokenHash {
			errs = append(errs, fmt.Errorf("the tokens under %s are %s, with everything resident %s", formatBytes(p.LimitBytes), p.TokenHash, r.TokenHash))
		}
		if !p.ExactBytes {
			errs = append(errs, fmt.Errorf("the bytes read under %s are not the records of what was missed or guessed", formatBytes(p.LimitBytes)))
		}
	}
	return errors.Join(errs...)
}

func (r *streamReport) print(out io.Writer) error {
	fmt.Fprintf(out, "%s, %s; %d experts of %s\n", r.Machine, r.Backend, r.ExpertCount, formatBytes(r.RecordBytes))
	fmt.Fprintf(out, "%.1f ms a token computed (%s); %d tokens, hash %s\n", r.ComputeMillis, r.ComputeFrom, r.Tokens, r.TokenHash)
	fmt.Fprintf(out, "%10s %6s %7s %8s %8s %9s %9s %9s %8s %8s %s\n", "limit", "slots", "tok/s", "wall ms", "wait ms", "misses", "read", "disk", "/ sum", "/ larger", "guessed, used")
	for _, p := range r.Points {
		fmt.Fprintf(out, "%10s %6d %7.2f %8.1f %8.1f %9.1f %9s %7s/s %8.2f %8.2f %d, %d\n", formatBytes(p.LimitBytes), p.Slots, p.TokensPerSecond, p.WallMillis, p.WaitMillis,
			p.Misses, formatBytes(int64(p.ReadBytes)), formatBytes(int64(p.DiskBytesPerSecond)), p.RatioToSum, p.RatioToLarger, p.GuessedReads, p.GuessedUsed)
	}
	verdict := "no limit is slower than a smaller one"
	if !r.NonDecreasing {
		verdict = "a LARGER limit was SLOWER"
	}
	_, err := fmt.Fprintln(out, verdict)
	return err
}
