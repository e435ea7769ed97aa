package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"runtime"
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
	DiskBytesPerSecond float64 `json:"disk_bytes_per_second"` // direct reads of records, before and after the run
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
	flags.IntVar(&f.warm, "warm", 24, "tokens that are generated before measuring, `N`")
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

func (f *streamFlags) measure(ctx context.Context, notes io.Writer) (*streamReport, error) {
	dir, err := f.path(ctx)
	if err != nil {
		return nil, err
	}
	f.dir = dir
	if err := f.records(); err != nil {
		return nil, err
	}
	r := &streamReport{Machine: fmt.Sprintf("%s/%s, %d threads", runtime.GOOS, runtime.GOARCH, runtime.NumCPU()), Model: dir,
		RecordBytes: f.recordBytes, ExpertCount: f.description.SparseLayers * f.description.Experts, Tokens: f.tokens}
	fmt.Fprintln(notes, "everything resident …")
	if err := f.resident(ctx, r); err != nil {
		return nil, err
	}
	for _, limit := range f.limitBytes {
		fmt.Fprintf(notes, "%s …\n", formatBytes(limit))
		p, err := f.point(ctx, limit, r.ComputeMillis)
		if err != nil {
			return nil, err
		}
		r.Points = append(r.Points, p)
	}
	r.NonDecreasing = true
	best := 0.0
	for _, p := range r.Points {
		r.NonDecreasing = r.NonDecreasing && p.TokensPerSecond >= best*(1-noise)
		best = max(best, p.TokensPerSecond)
	}
	return r, nil
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

// load opens the model under a limit. Drafts are off: a draft's experts are no token's.
func (f *streamFlags) load(ctx context.Context, limit int64) (*engine.Model, error) {
	return engine.Load(ctx, f.dir, engine.Options{Backend: f.backend, MemoryBytes: limit, Drafts: engine.DraftsOff, Guesses: f.mode, Readers: f.readers})
}

// pass generates the benchmark's tokens in a new conversation, and measures those after the first warm ones.
type pass struct {
	hash          string
	wall          time.Duration
	before, after telemetry.Snapshot
}

func (f *streamFlags) pass(ctx context.Context, model *engine.Model) (p pass, err error) {
	session, err := model.NewSession()
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, session.Close()) }()
	random := rand.New(rand.NewPCG(1, 2))
	prompt := make([]int32, f.prompt)
	for i := range prompt {
		prompt[i] = random.Int32N(int32(model.Config().Vocabulary))
	}
	var began time.Time
	count := 0
	result, err := session.Generate(ctx, engine.Request{Prompt: prompt, MaxTokens: f.warm + f.tokens, Sampling: engine.Greedy()}, func(piece engine.Piece) error {
		if piece.ID < 0 {
			return nil
		}
		switch count++; count {
		case f.warm:
			p.before, began = model.Stats(), time.Now()
		case f.warm + f.tokens:
			p.wall, p.after = time.Since(began), model.Stats()
		}
		return nil
	})
	switch {
	case err != nil:
		return p, err
	case result.FinishReason == engine.FinishCancelled:
		return p, context.Cause(ctx)
	case len(result.IDs) != f.warm+f.tokens:
		return p, fmt.Errorf("%d tokens were asked for and %d came (%s)", f.warm+f.tokens, len(result.IDs), result.FinishReason)
	}
	var tokens tokenHash
	err = tokens.round(result.IDs)
	p.hash = tokens.hex
	return p, err
}

func (f *streamFlags) millis(d time.Duration) float64 { return float64(d) / 1e6 / float64(f.tokens) }

// resident measures a token with nothing to read: the second of two equal passes with as much memory as the machine has. Where that does not hold the
// experts, the time that is not spent waiting stands in.
func (f *streamFlags) resident(ctx context.Context, r *streamReport) (err error) {
	model, err := f.load(ctx, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, model.Close()) }()
	var p pass
	for range 2 {
		if p, err = f.pass(ctx, model); err != nil {
			return err
		}
	}
	r.Backend, r.TokenHash = model.Backend(), p.hash
	r.ComputeMillis, r.ComputeFrom = f.millis(p.wall), "everything resident"
	if p.after.Misses != p.before.Misses {
		r.ComputeMillis, r.ComputeFrom = f.millis(p.wall-(p.after.Wait-p.before.Wait)), "time not spent waiting for the disk"
	}
	if len(f.limitBytes) == 0 {
		f.defaultLimits(model.Config(), p.after)
	}
	return nil
}

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

func (f *streamFlags) point(ctx context.Context, limit int64, computeMillis float64) (point streamPoint, err error) {
	probe := residency.Probe{PieceBytes: f.recordBytes, TotalBytes: math.MaxInt64, Readers: 8, Time: 1500 * time.Millisecond}
	before, err := residency.MeasureDisk(ctx, f.dir, probe)
	if err != nil {
		return point, err
	}
	model, err := f.load(ctx, limit)
	if err != nil {
		return point, err
	}
	p, err := f.pass(ctx, model)
	if err = errors.Join(err, model.Close()); err != nil {
		return point, err
	}
	// Closed: no read is under way any more.
	all := model.Stats()
	after, err := residency.MeasureDisk(ctx, f.dir, probe)
	if err != nil {
		return point, err
	}
	a, b, n := &p.after, &p.before, float64(f.tokens)
	// One conversation: what joined a read under way joined a guess.
	guessed, used := a.GuessedReads-b.GuessedReads, a.GuessedUsed-b.GuessedUsed
	missed := float64(a.Misses-b.Misses-(a.Joined-b.Joined)) + float64(used)
	point = streamPoint{
		LimitBytes: limit, Slots: int(a.SlotBytes / f.slotBytes), TokenHash: p.hash, PeakBytes: a.PeakBytes,
		WallMillis: f.millis(p.wall), WaitMillis: f.millis(a.Wait - b.Wait), TokensPerSecond: n / p.wall.Seconds(),
		Misses: float64(a.Misses-b.Misses) / n, MissedBytes: missed * float64(f.recordBytes) / n, ReadBytes: float64(a.ReadBytes-b.ReadBytes) / n,
		GuessedReads: guessed, GuessedUsed: used, DiskBytesPerSecond: (before + after) / 2, Readers: f.readers,
		ExactBytes: all.ReadBytes == all.Reads*uint64(f.recordBytes) && all.Reads == all.Misses-all.Joined+all.GuessedReads,
	}
	point.ReadMillis = point.MissedBytes / point.DiskBytesPerSecond * 1e3
	point.RatioToSum = point.WallMillis / (computeMillis + point.ReadMillis)
	point.RatioToLarger = point.WallMillis / max(computeMillis, point.ReadMillis)
	return point, nil
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
