package container

import (
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Keys of our files' __metadata__. stampKey is that of published containers; docs/containers.md describes the others.
const (
	stampKey      = "colibri.fmt"
	versionKey    = "colibri.version"
	recordsKey    = "colibri.records"
	sumsKey       = "colibri.crc32c"
	formatVersion = "1"
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// placementAlignment is that of matrices and scales in a record: a cache line, and more than any vector load needs.
const placementAlignment = 64

func alignUp(n, to int64) int64 { return (n + to - 1) / to * to }

// part is an expert's matrix before it has a place.
type part struct {
	encoding      Encoding
	rows, columns int
}

// newLayout places an expert's gate, up and down, each followed by its scales.
func newLayout(parts [3]part) ExpertLayout {
	var placements [3]Placement
	var at int64
	for i, p := range parts {
		pl := Placement{Encoding: p.encoding, Rows: p.rows, Columns: p.columns}
		pl.DataOffset, pl.DataBytes = at, p.encoding.DataBytes(p.rows, p.columns)
		at = alignUp(at+pl.DataBytes, placementAlignment)
		pl.ScaleOffset, pl.ScaleBytes = at, 4*p.encoding.ScaleCount(p.rows, p.columns)
		at = alignUp(at+pl.ScaleBytes, placementAlignment)
		placements[i] = pl
	}
	return ExpertLayout{SlotBytes: alignUp(at, ExpertAlignment), Gate: placements[0], Up: placements[1], Down: placements[2]}
}

func (l *ExpertLayout) placements() [3]*Placement { return [3]*Placement{&l.Gate, &l.Up, &l.Down} }

// Bytes is what the three matrices and their scales take, padding apart.
func (l *ExpertLayout) Bytes() (total int64) {
	for _, p := range l.placements() {
		total += p.DataBytes + p.ScaleBytes
	}
	return total
}

// quote writes a string as JSON; for valid UTF-8 that cannot fail.
func quote(s string) string {
	text, _ := json.Marshal(s)
	return string(text)
}

// formatRecords writes the value of __metadata__["colibri.records"].
func formatRecords(records map[string]ExpertLayout) string {
	var b strings.Builder
	b.WriteString("{")
	for i, name := range slices.Sorted(maps.Keys(records)) {
		layout := records[name]
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "%s:{\"bytes\":[%d]", quote(name), layout.SlotBytes)
		for i, p := range layout.placements() {
			fmt.Fprintf(&b, ",%q:{\"format\":%q,\"shape\":[%d,%d],\"data\":[%d,%d],\"scales\":[%d,%d]}",
				expertParts[i], p.Encoding, p.Rows, p.Columns, p.DataOffset, p.DataBytes, p.ScaleOffset, p.ScaleBytes)
		}
		b.WriteString("}")
	}
	b.WriteString("}")
	return b.String()
}

// parseRecords reads what formatRecords wrote, and checks that the parts fit their formats, lie within the record and
// do not overlap.
func parseRecords(text string) (map[string]ExpertLayout, error) {
	s := &scanner{text: []byte(text)}
	records := map[string]ExpertLayout{}
	err := s.object(func(name string) error {
		if _, twice := records[name]; twice {
			return fmt.Errorf("it describes the records of %q twice", name)
		}
		layout, err := s.record()
		if err == nil {
			err = layout.check()
		}
		if err != nil {
			return fmt.Errorf("its description of the records of %q: %w", name, err)
		}
		records[name] = layout
		return nil
	})
	if s.space(); err == nil && s.at < len(s.text) {
		err = errors.New("its description of records has text after the closing brace")
	}
	return records, err
}

func (s *scanner) record() (l ExpertLayout, err error) {
	seen := map[string]bool{}
	err = s.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("%q is given twice", key)
		}
		seen[key] = true
		if key == "bytes" {
			n, err := s.integers()
			if err == nil && len(n) != 1 {
				err = errors.New("bytes is not one number")
			}
			if err == nil {
				l.SlotBytes = n[0]
			}
			return err
		}
		i := slices.Index(expertParts[:], key)
		if i < 0 {
			return fmt.Errorf("unknown part %q", key)
		}
		return s.placement(l.placements()[i])
	})
	if err == nil && len(seen) != 4 {
		err = errors.New("a part is missing")
	}
	return l, err
}

func (s *scanner) placement(p *Placement) error {
	pairs := map[string][]int64{}
	err := s.object(func(key string) (err error) {
		if key == "format" {
			var name string
			if name, err = s.string(); err == nil {
				p.Encoding, err = ParseEncoding(name)
			}
			return err
		}
		pairs[key], err = s.integers()
		return err
	})
	if err != nil {
		return err
	}
	for _, key := range []string{"shape", "data", "scales"} {
		if len(pairs[key]) != 2 {
			return fmt.Errorf("%s is not two numbers", key)
		}
	}
	if rows, columns := pairs["shape"][0], pairs["shape"][1]; rows < 1 || columns < 1 || rows > maxVocabulary || columns > maxVocabulary {
		return fmt.Errorf("shape %v is out of range", pairs["shape"])
	}
	p.Rows, p.Columns = int(pairs["shape"][0]), int(pairs["shape"][1])
	p.DataOffset, p.DataBytes = pairs["data"][0], pairs["data"][1]
	p.ScaleOffset, p.ScaleBytes = pairs["scales"][0], pairs["scales"][1]
	return nil
}

// check makes a layout from a file as trustworthy as one of newLayout.
func (l *ExpertLayout) check() error {
	if l.SlotBytes < 1 || l.SlotBytes%ExpertAlignment != 0 {
		return fmt.Errorf("%d bytes are not a multiple of %d", l.SlotBytes, ExpertAlignment)
	}
	var taken [][2]int64
	for i, p := range l.placements() {
		if p.Format == 0 || p.DataBytes != p.Encoding.DataBytes(p.Rows, p.Columns) || p.ScaleBytes != 4*p.ScaleCount(p.Rows, p.Columns) {
			return fmt.Errorf("%s has %d bytes of data and %d of scales, which do not fit %s of [%d, %d]", expertParts[i], p.DataBytes, p.ScaleBytes, p.Encoding, p.Rows, p.Columns)
		}
		for _, run := range [][2]int64{{p.DataOffset, p.DataBytes}, {p.ScaleOffset, p.ScaleBytes}} {
			if run[1] > 0 {
				if run[0]%16 != 0 || run[0] > l.SlotBytes-run[1] {
					return fmt.Errorf("%s lies at %d, outside the record or not at a multiple of 16", expertParts[i], run[0])
				}
				taken = append(taken, run)
			}
		}
	}
	slices.SortFunc(taken, func(a, b [2]int64) int { return compare(a[0], b[0]) })
	for i := 1; i < len(taken); i++ {
		if taken[i-1][0]+taken[i-1][1] > taken[i][0] {
			return errors.New("its parts overlap")
		}
	}
	return nil
}

// formatSums writes the value of __metadata__["colibri.crc32c"]; its length depends only on the names.
func formatSums(names []string, sums map[string]uint32) string {
	var b strings.Builder
	b.WriteString("{")
	for i, name := range names {
		if i > 0 {
			b.WriteString(",")
		}
		fmt.Fprintf(&b, "%s:\"%08x\"", quote(name), sums[name])
	}
	b.WriteString("}")
	return b.String()
}

func parseSums(text string) (map[string]uint32, error) {
	s := &scanner{text: []byte(text)}
	texts, err := s.stringMap()
	if err != nil {
		return nil, fmt.Errorf("its checksums: %w", err)
	}
	sums := make(map[string]uint32, len(texts))
	for name, hex := range texts {
		n, err := strconv.ParseUint(hex, 16, 32)
		if err != nil || len(hex) != 8 {
			return nil, fmt.Errorf("its checksum of %q is not eight hexadecimal digits", name)
		}
		sums[name] = uint32(n)
	}
	return sums, nil
}

// experts finds every routed expert: as a record of ours, as one merged tensor, or as three.
func (r *resolver) experts() error {
	c := r.c.Config
	for layer, sparse := range c.Sparse {
		if !sparse {
			continue
		}
		for expert := range c.MoE.Experts {
			if r.missingCount >= enoughMissing {
				return nil // complete refuses
			}
			source, err := r.expert(layer, expert)
			if err != nil {
				return err
			}
			r.c.experts[[2]int{layer, expert}] = source
		}
	}
	return nil
}

func (r *resolver) expert(layer, expert int) (*expertSource, error) {
	c := r.c.Config
	prefix := expertPrefix(layer, expert)
	source := &expertSource{}
	for i, name := range expertParts {
		rows, columns := c.expertShape(i)
		source.parts[i] = &Weight{Name: prefix + "." + name + ".weight", Class: c.expertClass(layer), Layer: layer, Rows: rows, Columns: columns}
	}
	if t, ok := r.take(prefix); ok {
		return source, r.expertRecord(source, prefix, t)
	}
	if t, ok := r.take(prefix + ".merged_weight"); ok {
		q := &quantised{name: prefix + ".merged_weight", class: c.expertClass(layer), layer: layer, data: t.span(r.c)}
		for _, w := range source.parts {
			r.c.weights[w.Name] = w
			q.weights = append(q.weights, w.Name)
			q.shapes = append(q.shapes, shape{w.Rows, w.Columns})
		}
		return source, r.findPacked(q, t)
	}
	for _, w := range source.parts {
		if _, err := r.find(w, false, false); err != nil {
			return source, err
		}
	}
	return source, nil
}

// expertRecord describes one of our records, whose layout the file's metadata gives for its whole layer.
func (r *resolver) expertRecord(source *expertSource, name string, t located) error {
	s := r.c.shards[t.shard]
	layout, ok := r.records[name[:strings.LastIndexByte(name, '.')]]
	span := t.span(r.c)
	switch {
	case !ok:
		return fmt.Errorf("%s: nothing describes the expert record %q; convert the model again", s.name, name)
	case t.entry.dtype != "U8" || span.Bytes != layout.SlotBytes:
		return fmt.Errorf("%s: the expert record %q has %d bytes of %s instead of %d of U8; convert the model again", s.name, name, span.Bytes, t.entry.dtype, layout.SlotBytes)
	case span.Offset%ExpertAlignment != 0:
		return fmt.Errorf("%s: the expert record %q begins at byte %d, which is not a multiple of %d; convert the model again", s.name, name, span.Offset, ExpertAlignment)
	}
	for i, p := range layout.placements() {
		w := source.parts[i]
		if p.Rows != w.Rows || p.Columns != w.Columns {
			return fmt.Errorf("%s: %q is [%d, %d] in its record where config.json asks for [%d, %d]; use the config.json and files of one model", s.name, w.Name, p.Rows, p.Columns, w.Rows, w.Columns)
		}
		w.Encoding = p.Encoding
		w.Data = Span{span.File, span.Offset + p.DataOffset, p.DataBytes}
		w.Scales = Span{span.File, span.Offset + p.ScaleOffset, p.ScaleBytes}
		r.c.weights[w.Name] = w
	}
	source.record, source.layout = &span, layout
	if sum, ok := r.sums[name]; ok {
		source.sum = &sum
	}
	return nil
}

// Expert says how to bring a routed expert into memory. It costs no reads.
func (c *Container) Expert(layer, index int) (Expert, error) {
	source, ok := c.experts[[2]int{layer, index}]
	if !ok {
		return Expert{}, fmt.Errorf("%s: layer %d has no expert %d", c.Dir, layer, index)
	}
	e := Expert{Layer: layer, Index: index}
	if source.record != nil {
		e.Layout = source.layout
		e.Reads = []Read{{File: source.record.File, Offset: source.record.Offset, Bytes: source.record.Bytes}}
		if source.sum != nil {
			e.Sum, e.HasSum = *source.sum, true
		}
		return e, nil
	}
	var parts [3]part
	for i, w := range source.parts {
		parts[i] = part{w.Encoding, w.Rows, w.Columns}
	}
	e.Layout = newLayout(parts)
	e.Reads = source.reads(&e.Layout)
	return e, nil
}

// joinedGap is how many unused bytes between two pieces are read along rather than skipped with a second read: one
// block of the disk, which a direct read fetches anyway.
const joinedGap = 4 << 10

// reads gathers the pieces of an expert that is not a record into as few reads as their places in the files allow.
func (s *expertSource) reads(layout *ExpertLayout) []Read {
	type run struct {
		Span
		to int64
	}
	var runs []run
	for i, p := range layout.placements() {
		runs = append(runs, run{s.parts[i].Data, p.DataOffset})
		if p.ScaleBytes > 0 {
			runs = append(runs, run{s.parts[i].Scales, p.ScaleOffset})
		}
	}
	slices.SortFunc(runs, func(a, b run) int {
		if a.File != b.File {
			return a.File - b.File
		}
		return compare(a.Offset, b.Offset)
	})
	var reads []Read
	for _, r := range runs {
		last := len(reads) - 1
		if last < 0 || reads[last].File != r.File || r.Offset > reads[last].Offset+reads[last].Bytes+joinedGap {
			reads = append(reads, Read{File: r.File, Offset: r.Offset})
			last++
		}
		read := &reads[last]
		read.Pieces = append(read.Pieces, Piece{From: r.Offset - read.Offset, To: r.to, Bytes: r.Bytes})
		read.Bytes = max(read.Bytes, r.Offset+r.Bytes-read.Offset)
	}
	return reads
}

// ReadExpert fills a slot of SlotBytes bytes, the plain way: callers that schedule reads themselves follow Expert.Reads.
func (c *Container) ReadExpert(e *Expert, slot []byte) error {
	if int64(len(slot)) != e.Layout.SlotBytes {
		return fmt.Errorf("a slot of %d bytes was given for an expert of %d", len(slot), e.Layout.SlotBytes)
	}
	for _, r := range e.Reads {
		if len(r.Pieces) == 0 {
			if err := c.read(Span{r.File, r.Offset, r.Bytes}, slot[:r.Bytes]); err != nil {
				return fmt.Errorf("expert %d of layer %d: %w", e.Index, e.Layer, err)
			}
		}
		for _, p := range r.Pieces {
			if err := c.read(Span{r.File, r.Offset + p.From, p.Bytes}, slot[p.To:p.To+p.Bytes]); err != nil {
				return fmt.Errorf("expert %d of layer %d: %w", e.Index, e.Layer, err)
			}
		}
	}
	if e.HasSum && crc32.Checksum(slot, castagnoli) != e.Sum {
		return fmt.Errorf("expert %d of layer %d (%s) is damaged: its checksum does not match; download or convert the model again", e.Index, e.Layer, c.Files[e.Reads[0].File].Path)
	}
	return nil
}

// ExpertLayouts counts the routed experts by layout, so that memory is priced by exact sizes.
func (c *Container) ExpertLayouts() map[ExpertLayout]int {
	counts := map[ExpertLayout]int{}
	for _, s := range c.experts {
		if s.record != nil {
			counts[s.layout]++
			continue
		}
		var parts [3]part
		for i, w := range s.parts {
			parts[i] = part{w.Encoding, w.Rows, w.Columns}
		}
		counts[newLayout(parts)]++
	}
	return counts
}

// ExpertBytes is the size of all routed experts in memory, their padding included.
func (c *Container) ExpertBytes() (total int64) {
	for layout, n := range c.ExpertLayouts() {
		total += layout.SlotBytes * int64(n)
	}
	return total
}
