package container

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Progress is told about ten times a second while a container is written.
type Progress struct {
	File            string // being written
	Files, FilesAll int    // done, and in all
	Bytes, BytesAll int64  // of output
	Elapsed         time.Duration
	Remaining       time.Duration // 0 while unknown
}

// Report says what Convert did.
type Report struct {
	Files, FilesKept int   // written now, and found finished from an interrupted run
	Bytes            int64 // of the whole container's weights
	Classes          []ClassReport
	Warnings         []string
	Elapsed          time.Duration
}

// ClassReport is one kind of tensor in a container that this program wrote.
type ClassReport struct {
	Class     Class
	Encodings []Encoding
	Bytes     int64
	// RelativeError is the root of the mean squared difference to the source's weights, relative to theirs; 0 where nothing
	// was rounded. LargestError is the largest single difference.
	RelativeError, LargestError float64
}

// Convert writes our own container from a checkpoint or a published container. A conversion that was interrupted at
// any moment is continued by calling Convert again with the same arguments, and gives the same bytes. The input is
// only read. Memory is bounded by a few experts.
func Convert(ctx context.Context, in, out string, options Options, progress func(Progress)) (*Report, error) {
	return convert(ctx, in, out, options, progress, realDisk{})
}

func convert(ctx context.Context, in, out string, options Options, progress func(Progress), d disk) (*Report, error) {
	c, err := Open(in)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := apart(in, out); err != nil {
		return nil, err
	}
	shards, err := plan(c.Config, options.shardBytes(), func(name string, class Class) Encoding {
		return options.encoding(class, c.weights[name].Encoding)
	})
	if err != nil {
		return nil, err
	}
	source, err := c.Identity()
	if err != nil {
		return nil, err
	}
	sw := &shardWriter{dir: out, disk: d, contents: &conversion{c}}
	m := &manifest{Version: 1, Source: source, Formats: formatsOf(shards), ShardBytes: options.shardBytes()}
	r, err := sw.run(ctx, shards, m, progress, func() error { return c.copySmallFiles(sw) })
	if err != nil {
		return nil, err
	}
	r.Warnings = append(warnings(c, shards), r.Warnings...)
	return r, nil
}

// run writes all shards and what belongs beside them, checks the result and takes the mark of unfinished work away.
func (sw *shardWriter) run(ctx context.Context, shards []*plannedShard, m *manifest, progress func(Progress), extras func() error) (*Report, error) {
	marked, err := sw.begin(m)
	if err != nil {
		return nil, err
	}
	defer marked.Close()
	started := time.Now()
	r := &Report{}
	var todo []*plannedShard
	var need int64
	for _, s := range shards {
		r.Bytes += s.bytes
		done, err := sw.finished(s)
		if err != nil {
			return nil, err
		}
		if done {
			r.FilesKept++
			continue
		}
		todo = append(todo, s)
		need += s.bytes
	}
	if free, err := freeBytes(sw.dir); err == nil && free < need {
		return nil, fmt.Errorf("%s needs %d MB more, but its disk has only %d MB free; free some room or choose another disk", sw.dir, need>>20, free>>20)
	}
	p := &progressMeter{report: progress, started: started, state: Progress{Files: r.FilesKept, FilesAll: len(shards), BytesAll: r.Bytes, Bytes: r.Bytes - need}, first: r.Bytes - need}
	sw.written = p.add
	for _, s := range todo {
		p.state.File = s.name
		if err := sw.write(ctx, s); err != nil {
			return nil, err
		}
		r.Files++
		p.state.Files++
	}
	if err := extras(); err != nil {
		return nil, err
	}
	if err := sw.check(r); err != nil {
		return nil, err
	}
	if err := sw.disk.Remove(filepath.Join(sw.dir, manifestName)); err != nil {
		return nil, fmt.Errorf("%s cannot be removed: %w", filepath.Join(sw.dir, manifestName), err)
	}
	if err := sw.disk.SyncDirectory(sw.dir); err != nil {
		return nil, fmt.Errorf("%s cannot be brought to the disk: %w", sw.dir, err)
	}
	r.Elapsed = time.Since(started)
	return r, nil
}

// finished tells whether a shard is there, whole and as planned.
func (sw *shardWriter) finished(s *plannedShard) (bool, error) {
	if _, err := os.Lstat(filepath.Join(sw.dir, s.name)); errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	have, err := openShard(sw.dir, s.name)
	if err != nil {
		return false, err
	}
	defer have.handle.Close()
	same := slices.EqualFunc(have.header.tensors, s.tensors, func(a tensorEntry, b plannedTensor) bool {
		return a.name == b.name && a.dtype == b.dtype && a.begin == b.begin && a.end == b.end
	})
	if !same {
		return false, fmt.Errorf("%s does not belong to this conversion; delete the folder %s and convert again", s.name, sw.dir)
	}
	return true, nil
}

// check opens the finished container as any reader would, and gathers the measured errors from its files.
func (sw *shardWriter) check(r *Report) error {
	c := newContainer(sw.dir)
	defer c.Close()
	if err := c.open(true); err != nil {
		return fmt.Errorf("the finished container %s cannot be used: %w", sw.dir, err)
	}
	var err error
	r.Classes, err = c.classReports()
	return err
}

// apart refuses to write into the input.
func apart(in, out string) error {
	source, err := filepath.EvalSymlinks(in)
	if err != nil {
		return err
	}
	if source, err = filepath.Abs(source); err != nil {
		return err
	}
	target, err := filepath.Abs(out)
	if err != nil {
		return err
	}
	// The output need not exist yet; the nearest folder that does tells where it will be.
	for dir := target; ; dir = filepath.Dir(dir) {
		if real, err := filepath.EvalSymlinks(dir); err == nil {
			target = filepath.Join(real, strings.TrimPrefix(target, dir))
			break
		}
		if dir == filepath.Dir(dir) {
			break
		}
	}
	if target == source || strings.HasPrefix(target, source+string(filepath.Separator)) {
		return fmt.Errorf("%s lies in the model that is to be converted; choose a folder outside it", out)
	}
	return nil
}

// formatsOf names what is written, by class and part: the choices that a continued conversion must share.
func formatsOf(shards []*plannedShard) map[string]string {
	formats := map[string]string{}
	for _, s := range shards {
		for i := range s.items {
			for _, w := range s.items[i].weights() {
				key, name := w.Class.String(), w.Encoding.String()
				if !slices.Contains(strings.Split(formats[key], "+"), name) {
					formats[key] = strings.TrimPrefix(formats[key]+"+"+name, "+")
				}
			}
		}
	}
	return formats
}

// warnings are what a user should know before relying on the result.
func warnings(c *Container, shards []*plannedShard) []string {
	var list []string
	add := func(format string, args ...any) {
		if text := fmt.Sprintf(format, args...); !slices.Contains(list, text) {
			list = append(list, text)
		}
	}
	for _, s := range shards {
		for i := range s.items {
			for _, w := range s.items[i].weights() {
				source := c.weights[w.Name].Encoding
				if w.Class == MTPHead && coarse(w.Encoding.Format) {
					add("the MTP layers are written as %s: below 8 bits their drafts are rarely accepted; int8 is the default", w.Encoding)
				}
				if w.Class == RoutedExperts && w.Encoding.Format == Int4Row {
					add("experts are written as int4-row: one scale a row costs several points of quality; int4-g64 is 12%% larger and much better")
				}
				if source != w.Encoding && coarse(source.Format) {
					add("%s were %s in the source and are now %s: what the first rounding lost does not come back", w.Class, source, w.Encoding)
				}
			}
		}
	}
	return list
}

// coarse tells formats of less than 8 bits.
func coarse(f Format) bool {
	return f == Int4Row || f == Int4Group || f == Int3Group64 || f == Int2Row
}

// smallFiles are copied beside the weights as they are.
var smallFiles = []string{"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
	"chat_template.json", "special_tokens_map.json", "added_tokens.json", "LICENSE", "LICENSE.txt", "LICENSE.md", "NOTICE"}

// maxSmallFile is several times the largest tokenizer.json in use (33 MB).
const maxSmallFile = 256 << 20

func (c *Container) copySmallFiles(sw *shardWriter) error {
	for _, name := range smallFiles {
		text, err := c.Text(name, maxSmallFile)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if err := sw.writeSmall(name, text); err != nil {
			return err
		}
	}
	return nil
}

// conversion repacks the weights of an open container.
type conversion struct{ c *Container }

func (v *conversion) rows(w *plannedWeight, first, last int) ([]byte, []float32, errorStat, error) {
	data, scales, lost, err := v.repack(w, first, last)
	if err != nil {
		err = fmt.Errorf("%s: weight %q, rows %d to %d: %w", v.c.Dir, w.Name, first, last-1, err)
	}
	return data, scales, lost, err
}

func (v *conversion) repack(w *plannedWeight, first, last int) ([]byte, []float32, errorStat, error) {
	none := errorStat{Count: int64(last-first) * int64(w.Columns)}
	b, err := v.c.readRows(v.c.weights[w.Name], first, last)
	if err != nil || b.Encoding.within(w.Columns) == w.Encoding.within(w.Columns) {
		return b.Data, b.Scales, none, err
	}
	weights := Dequantise(&b)
	data, scales, err := Quantise(w.Encoding, b.Rows, b.Columns, weights)
	if err != nil || w.Encoding.Format == F32 {
		return data, scales, none, err
	}
	return data, scales, measure(&Block{Encoding: w.Encoding, Rows: b.Rows, Columns: b.Columns, Data: data, Scales: scales}, weights), nil
}

// readRows reads a band of a weight's rows; first is a multiple of Block128 for fp8.
func (c *Container) readRows(w *Weight, first, last int) (Block, error) {
	rowBytes, perRow := w.Encoding.DataBytes(1, w.Columns), w.Encoding.ScaleCount(1, w.Columns)
	before := int64(first)
	if w.Encoding.Format == FP8Block128 {
		before /= Block128
	}
	b := Block{Encoding: w.Encoding, Rows: last - first, Columns: w.Columns}
	b.Data = make([]byte, int64(b.Rows)*rowBytes)
	b.Scales = make([]float32, w.Encoding.ScaleCount(b.Rows, w.Columns))
	if err := c.read(Span{w.Data.File, w.Data.Offset + int64(first)*rowBytes, int64(len(b.Data))}, b.Data); err != nil {
		return b, err
	}
	return b, c.read(Span{w.Scales.File, w.Scales.Offset + 4*before*perRow, int64(4 * len(b.Scales))}, bytesOf(b.Scales))
}

// measure compares a packed block with what it was made from.
func measure(b *Block, weights []float32) errorStat {
	perRow := make([]errorStat, b.Rows)
	row := b.Columns
	back := Dequantise(b)
	parallel(b.Rows, func(r int) error {
		s := &perRow[r]
		for i := r * row; i < (r+1)*row; i++ {
			d := float64(back[i] - weights[i])
			s.Difference += d * d
			s.Weights += float64(weights[i]) * float64(weights[i])
			s.Largest = max(s.Largest, d, -d)
		}
		s.Count = int64(row)
		return nil
	})
	var total errorStat
	for _, s := range perRow {
		total.add(s)
	}
	return total
}

// classReports sums up the container's classes; measured errors are there for what this program wrote.
func (c *Container) classReports() ([]ClassReport, error) {
	stats := map[Class]errorStat{}
	for _, s := range c.shards {
		text, ok := s.header.metadata[errorKey]
		if !ok {
			continue
		}
		part, err := parseErrors(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w; convert the model again", s.name, err)
		}
		for class, e := range part {
			total := stats[class]
			total.add(e)
			stats[class] = total
		}
	}
	reports := make([]ClassReport, len(classNames))
	for _, w := range c.weights {
		r := &reports[w.Class]
		r.Bytes += w.Bytes()
		if !slices.Contains(r.Encodings, w.Encoding) {
			r.Encodings = append(r.Encodings, w.Encoding)
		}
	}
	for class := range reports {
		r, s := &reports[class], stats[Class(class)]
		r.Class = Class(class)
		r.RelativeError, r.LargestError = s.Relative(), s.Largest
		slices.SortFunc(r.Encodings, func(a, b Encoding) int { return strings.Compare(a.String(), b.String()) })
	}
	return slices.DeleteFunc(reports, func(r ClassReport) bool { return r.Bytes == 0 }), nil
}

// progressMeter turns written bytes into Progress.
type progressMeter struct {
	report  func(Progress)
	started time.Time
	last    time.Time
	first   int64 // bytes that were there before
	state   Progress
}

func (p *progressMeter) add(bytes int64) {
	p.state.Bytes += bytes
	now := time.Now()
	if p.report == nil || now.Sub(p.last) < 100*time.Millisecond {
		return
	}
	p.last = now
	p.state.Elapsed = now.Sub(p.started)
	if done := p.state.Bytes - p.first; done > 0 {
		p.state.Remaining = time.Duration(float64(p.state.Elapsed) / float64(done) * float64(p.state.BytesAll-p.state.Bytes))
	}
	p.report(p.state)
}
