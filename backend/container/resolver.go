package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
)

// resolver turns the tensors of the shards into weights: it finds what the Config asks for, says what is missing, and
// settles every format.
type resolver struct {
	c       *Container
	tensors map[string]located
	stamps  map[string]Encoding
	records map[string]ExpertLayout // by tensor name without the expert's number
	sums    map[string]uint32
	open    []*quantised // with more than one reading
	// blockScales: some tensor has block scales as fp8 checkpoints name them, so one without is missing its own.
	blockScales bool
	evidence    evidence

	missing      []string
	missingCount int
}

// located is a tensor and the shard it is in.
type located struct {
	shard int
	entry tensorEntry
	used  bool
}

func (l located) span(c *Container) Span {
	return Span{File: l.shard, Offset: c.shards[l.shard].dataStart + l.entry.begin, Bytes: l.entry.end - l.entry.begin}
}

func (r *resolver) run() error {
	if err := r.index(); err != nil {
		return err
	}
	r.findMTP()
	r.findIndexer()
	var failure error
	r.c.Config.resident(func(s tensorSpec) {
		if failure == nil {
			failure = r.resolve(s)
		}
	})
	if failure == nil {
		failure = r.experts()
	}
	if failure != nil {
		return failure
	}
	if err := r.complete(); err != nil {
		return err
	}
	for _, q := range r.open {
		if err := q.settle(r.evidence, func(s shape) ([]byte, []float32, int, error) { return r.sample(q, s) }); err != nil {
			return err
		}
		r.place(q)
	}
	for name, t := range r.tensors {
		if !t.used {
			r.c.Ignored = append(r.c.Ignored, name)
		}
	}
	slices.Sort(r.c.Ignored)
	return nil
}

// index collects the names and stamps of all shards.
func (r *resolver) index() error {
	for i, s := range r.c.shards {
		for _, t := range s.header.tensors {
			if other, twice := r.tensors[t.name]; twice {
				return fmt.Errorf("tensor %q is both in %s and in %s; remove the file that does not belong to this model", t.name, r.c.shards[other.shard].name, s.name)
			}
			r.tensors[t.name] = located{shard: i, entry: t}
			r.blockScales = r.blockScales || strings.HasSuffix(t.name, "_scale_inv")
		}
		if version, ok := s.header.metadata[versionKey]; ok && version != formatVersion {
			return fmt.Errorf("%s is written in version %s of the Colibri format, this program knows version %s; get the newest Colibri", s.name, version, formatVersion)
		}
		if err := r.metadata(s); err != nil {
			return fmt.Errorf("%s: %w; download it again", s.name, err)
		}
	}
	return r.checkIndexFile()
}

func (r *resolver) metadata(s *shard) error {
	if text, ok := s.header.metadata[stampKey]; ok {
		stamps, err := parseStamps(text)
		if err != nil {
			return err
		}
		for name, e := range stamps {
			if other, twice := r.stamps[name]; twice && other != e {
				return fmt.Errorf("it stamps %q as %s, another shard as %s", name, e, other)
			}
			r.stamps[name] = e
		}
	}
	if text, ok := s.header.metadata[recordsKey]; ok {
		records, err := parseRecords(text)
		if err != nil {
			return err
		}
		for name, layout := range records {
			if other, twice := r.records[name]; twice && other != layout {
				return fmt.Errorf("its records of %q differ from another shard's", name)
			}
			r.records[name] = layout
		}
	}
	if text, ok := s.header.metadata[sumsKey]; ok {
		sums, err := parseSums(text)
		if err != nil {
			return err
		}
		for name, sum := range sums {
			r.sums[name] = sum
		}
	}
	return nil
}

// checkIndexFile uses model.safetensors.index.json, where there is one, only to notice files that are missing.
func (r *resolver) checkIndexFile() error {
	const name = "model.safetensors.index.json"
	text, err := readSmallOptional(r.c.Dir, name)
	if err != nil || text == nil {
		return err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return fmt.Errorf("%s is not valid (%w); download it again", name, err)
	}
	absent := map[string]bool{}
	for _, file := range index.WeightMap {
		if !slices.ContainsFunc(r.c.shards, func(s *shard) bool { return s.name == path.Clean(file) }) {
			absent[file] = true
		}
	}
	if len(absent) > 0 {
		return fmt.Errorf("%d files that %s names are missing: %s; download them", len(absent), name, few(sortedKeys(absent)))
	}
	return nil
}

func readSmallOptional(dir, name string) ([]byte, error) {
	text, err := readSmall(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return text, err
}

// findMTP sets the number of multi-token-prediction layers to what the files hold: many containers leave them out.
func (r *resolver) findMTP() {
	c := r.c.Config
	if !c.sigmoidFamily() {
		return
	}
	layers := map[int]bool{}
	for name := range r.tensors {
		if rest, ok := strings.CutPrefix(name, "model.layers."); ok {
			number, _, _ := strings.Cut(rest, ".")
			if n, err := strconv.Atoi(number); err == nil {
				layers[n] = true
			}
		}
	}
	found := 0
	for found < maxMTPLayers && layers[c.Layers+found] {
		found++
	}
	c.setMTPLayers(found)
	if x := &c.Attention.Index; x.Heads > 0 {
		for k := range found {
			_, x.Full[c.Layers+k] = r.tensors[layerPrefix(c.Layers+k)+"self_attn.indexer.wk.weight"]
		}
	}
}

func (c *Config) setMTPLayers(n int) {
	c.MTPLayers = n
	c.Sparse = c.Sparse[:c.Layers:c.Layers]
	if c.Attention.Index.Heads > 0 {
		c.Attention.Index.Full = c.Attention.Index.Full[:c.Layers:c.Layers]
	}
	for range n {
		c.Sparse = append(c.Sparse, true)
		if c.Attention.Index.Heads > 0 {
			c.Attention.Index.Full = append(c.Attention.Index.Full, false)
		}
	}
}

// findIndexer turns sparse attention off where the container has none of its tensors, as older ones have not.
func (r *resolver) findIndexer() {
	c := r.c.Config
	if c.Attention.Index.Heads == 0 {
		return
	}
	for name := range r.tensors {
		if strings.Contains(name, ".self_attn.indexer.") {
			return
		}
	}
	topK := c.Attention.Index.TopK
	c.Attention.Index = Indexer{}
	r.c.Notes = append(r.c.Notes, fmt.Sprintf("this container has no indexer tensors, so attention reads every position; beyond %d tokens it is slower than the model was made to be", topK))
}

// resolve finds the tensor of a resident weight.
func (r *resolver) resolve(s tensorSpec) error {
	w := &Weight{Name: s.name, Class: s.class, Layer: s.layer, Rows: s.rows, Columns: s.columns}
	found, err := r.find(w, s.vector, s.floats)
	if found {
		r.c.resident = append(r.c.resident, w)
	}
	return err
}

// find fills in a weight's encoding and place, or notes that it is missing. Packed weights with several readings
// are kept for later.
func (r *resolver) find(w *Weight, vector, floats bool) (bool, error) {
	t, ok := r.take(w.Name)
	if !ok {
		r.miss(w.Name)
		return false, nil
	}
	w.Data = t.span(r.c)
	r.c.weights[w.Name] = w
	file := r.c.shards[t.shard].name
	wanted := []int64{int64(w.Rows), int64(w.Columns)}
	if vector {
		wanted = wanted[1:]
	}
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s: tensor %q %w; use the config.json and files of one model", file, w.Name, fmt.Errorf(format, args...))
	}
	float, isFloat := map[string]Format{"F32": F32, "BF16": BF16, "F16": F16}[t.entry.dtype]
	if isFloat || t.entry.dtype == "F8_E4M3" {
		if !slices.Equal(t.entry.shape, wanted) {
			return false, refuse("has shape %v where config.json asks for %v", t.entry.shape, wanted)
		}
	}
	if isFloat {
		w.Encoding = Encoding{Format: float}
		if e, stamped := r.stamps[w.Name]; stamped && e != w.Encoding {
			return false, refuse("is stamped %s but holds %s", e, t.entry.dtype)
		}
		return true, nil
	}
	if floats {
		return false, refuse("must be F32, BF16 or F16, not %s", t.entry.dtype)
	}
	q := &quantised{name: w.Name, weights: []string{w.Name}, shapes: []shape{{w.Rows, w.Columns}}, class: w.Class, layer: w.Layer, data: w.Data}
	switch t.entry.dtype {
	case "F8_E4M3":
		return true, r.findFP8(q, w, t)
	case "U8", "I8":
		return true, r.findPacked(q, t)
	}
	return false, refuse("holds %s, which is not a supported weight type", t.entry.dtype)
}

// take finds a tensor and notes that it is used.
func (r *resolver) take(name string) (located, bool) {
	t, ok := r.tensors[name]
	if ok {
		t.used = true
		r.tensors[name] = t
	}
	return t, ok
}

// findFP8 finds the tile scales of a checkpoint's fp8 weight.
func (r *resolver) findFP8(q *quantised, w *Weight, t located) error {
	file := r.c.shards[t.shard].name
	name := q.name + "_scale_inv"
	s, ok := r.take(name)
	if !ok {
		name = q.name + ".qs"
		if s, ok = r.take(name); !ok && r.blockScales {
			r.miss(q.name + "_scale_inv")
			return nil
		}
		if !ok {
			return fmt.Errorf("%s: tensor %q is fp8 without %q; only fp8 with scales for 128x128 blocks is supported", file, q.name, q.name+"_scale_inv")
		}
	}
	e := Encoding{Format: FP8Block128}
	tiles := []int64{int64(w.Rows+Block128-1) / Block128, int64(w.Columns+Block128-1) / Block128}
	if s.entry.dtype != "F32" || s.entry.end-s.entry.begin != 4*tiles[0]*tiles[1] || len(s.entry.shape) == 2 && !slices.Equal(s.entry.shape, tiles) {
		return fmt.Errorf("%s: %q is %s of shape %v; only F32 scales for 128x128 blocks are supported", r.c.shards[s.shard].name, name, s.entry.dtype, s.entry.shape)
	}
	if stamp, stamped := r.stamps[q.name]; stamped && stamp != e {
		return fmt.Errorf("%s: tensor %q is stamped %s but holds %s; download the file again", file, q.name, stamp, t.entry.dtype)
	}
	q.scales, q.readings, q.stamped = s.span(r.c), []Encoding{e}, true
	r.settled(q)
	return nil
}

// findPacked finds the scales of a published container's weight, and what its byte counts and stamp say.
func (r *resolver) findPacked(q *quantised, t located) error {
	file := r.c.shards[t.shard].name
	s, ok := r.take(q.name + ".qs")
	if !ok {
		r.miss(q.name + ".qs")
		return nil
	}
	if s.entry.dtype != "F32" {
		return fmt.Errorf("%s: the scales %q are %s; only F32 scales are supported", r.c.shards[s.shard].name, q.name+".qs", s.entry.dtype)
	}
	q.scales = s.span(r.c)
	q.readings = readingsOf(q.data.Bytes, q.scales.Bytes, q.shapes)
	if t.entry.dtype == "I8" {
		q.readings = slices.DeleteFunc(q.readings, func(e Encoding) bool { return e.Format != Int8Row })
	}
	if e, stamped := r.stamps[q.name]; stamped {
		if err := q.stamp(e); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	if len(q.readings) == 0 {
		return fmt.Errorf("%s: tensor %q has %d bytes of data and %d of scales, which no supported format gives for %v%s; use the config.json and files of one model",
			file, q.name, q.data.Bytes, q.scales.Bytes, q.shapesText(), latticeHint(q))
	}
	if len(q.readings) == 1 {
		r.settled(q)
	} else {
		r.open = append(r.open, q)
	}
	return nil
}

// latticeHint names the one published format that is recognisable and not supported.
func latticeHint(q *quantised) string {
	s := q.shapes[0]
	if q.scales.Bytes == 4 && q.data.Bytes == int64(s.rows)*int64((s.columns+255)/256)*98 {
		return " (it looks like e8-iq3-lattice, which is not supported)"
	}
	return ""
}

// settled records a weight whose encoding is known.
func (r *resolver) settled(q *quantised) {
	r.evidence.add(q)
	r.place(q)
}

// place gives a settled tensor's weights their encoding and their parts of its bytes.
func (r *resolver) place(q *quantised) {
	data, scales := q.data.Offset, q.scales.Offset
	for i, name := range q.weights {
		s := q.shapes[i]
		e := q.readings[0].within(s.columns)
		w := r.c.weights[name]
		w.Encoding = e
		w.Data = Span{q.data.File, data, e.DataBytes(s.rows, s.columns)}
		w.Scales = Span{q.scales.File, scales, 4 * e.ScaleCount(s.rows, s.columns)}
		data += w.Data.Bytes
		scales += w.Scales.Bytes
	}
}

// sampleBytes is how much of a weight is read to tell its format: enough for thousands of groups.
const sampleBytes = 1 << 20

// sample reads the first rows of a tensor and their scales, as the readings with scales by row lay them out.
func (r *resolver) sample(q *quantised, s shape) ([]byte, []float32, int, error) {
	rowBytes := q.readings[0].DataBytes(1, s.columns)
	perRow := int64(1)
	for _, e := range q.readings {
		if e.Format != FP8Block128 {
			perRow = e.ScaleCount(1, s.columns)
		}
	}
	rows := min(int64(s.rows), max(1, sampleBytes/rowBytes))
	data, scales := make([]byte, rows*rowBytes), make([]float32, rows*perRow)
	if err := r.c.read(Span{q.data.File, q.data.Offset, int64(len(data))}, data); err != nil {
		return nil, nil, 0, err
	}
	if err := r.c.read(Span{q.scales.File, q.scales.Offset, int64(4 * len(scales))}, bytesOf(scales)); err != nil {
		return nil, nil, 0, err
	}
	return data, scales, int(rows), nil
}
