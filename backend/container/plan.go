package container

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
)

// Options choose what Convert and Generate write. A zero Encoding means the class's default; see Options.encoding.
type Options struct {
	Experts, SharedExperts, Attention, DenseMLP, Embeddings, MTP Encoding
	// ShardBytes is the size at which a shard is closed; 0 means 4 GiB.
	ShardBytes int64
}

const defaultShardBytes = 4 << 30

// encoding decides how a class is written. Defaults: experts int4-g64, everything else int8-row, the
// multi-token-prediction layers too (at 4 bits their eh_proj loses the embedding half, and drafts are never accepted).
// Weights that are integers already are kept as they are unless the user names a format: a second rounding only loses.
func (o *Options) encoding(class Class, source Encoding) Encoding {
	if class == Unquantised {
		return Encoding{Format: F32}
	}
	chosen := map[Class]Encoding{RoutedExperts: o.Experts, SharedExperts: o.SharedExperts, AttentionWeights: o.Attention,
		DenseMLP: o.DenseMLP, Embeddings: o.Embeddings, MTPHead: o.MTP}[class]
	switch {
	case chosen.Format != 0:
		return chosen
	case source.Format != 0 && !source.Format.IsFloat() && source.Format != FP8Block128:
		return source
	case class == RoutedExperts:
		return Encoding{Int4Group, 64}
	}
	return Encoding{Format: Int8Row}
}

func (o *Options) shardBytes() int64 {
	if o.ShardBytes == 0 {
		return defaultShardBytes
	}
	return o.ShardBytes
}

// plannedWeight is a weight to be written.
type plannedWeight struct {
	Name          string
	Class         Class
	Layer         int
	Rows, Columns int
	Vector        bool
	Encoding      Encoding
}

// plannedTensor is one tensor of a planned shard: a weight's numbers, its scales, or an expert's record.
type plannedTensor struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64 // of the shard's data
}

// plannedItem is what is produced at once: a resident weight, or an expert.
type plannedItem struct {
	weight       *plannedWeight // nil for an expert
	layer, index int
	parts        [3]plannedWeight
	layout       ExpertLayout
	data, scales int // indexes into plannedShard.tensors; scales −1 without; an expert has only data
}

func (p *plannedItem) name() string {
	if p.weight != nil {
		return p.weight.Name
	}
	return expertPrefix(p.layer, p.index)
}

func (p *plannedItem) bytes() int64 {
	if p.weight != nil {
		return p.weight.Encoding.DataBytes(p.weight.Rows, p.weight.Columns) + 4*p.weight.Encoding.ScaleCount(p.weight.Rows, p.weight.Columns)
	}
	return p.layout.SlotBytes
}

// plannedShard is one file to be written. Everything about it is known before the first byte: sizes follow from formats.
type plannedShard struct {
	name    string
	items   []plannedItem
	tensors []plannedTensor // in file order
	bytes   int64           // of the data
	records map[string]ExpertLayout
	stamps  map[string]Encoding
}

// plan lays out a container: the resident weights first, in the order of use, then the experts layer by layer. It is a function of its
// arguments alone, so that an interrupted conversion finds the same plan again.
func plan(c *Config, shardBytes int64, encodingOf func(name string, class Class) Encoding) ([]*plannedShard, error) {
	var shards []*plannedShard
	open := &plannedShard{}
	add := func(item plannedItem) {
		if size := item.bytes(); len(open.items) > 0 && open.bytes+size > shardBytes {
			shards = append(shards, open)
			open = &plannedShard{}
		}
		open.bytes += item.bytes()
		open.items = append(open.items, item)
	}
	c.resident(func(s tensorSpec) {
		e := encodingOf(s.name, s.class)
		add(plannedItem{weight: &plannedWeight{s.name, s.class, s.layer, s.rows, s.columns, s.vector, e}})
	})
	// Records start a shard of their own, whose data begins on their alignment and holds nothing else.
	shards, open = append(shards, open), &plannedShard{}
	for layer, sparse := range c.Sparse {
		if !sparse {
			continue
		}
		for index := range c.MoE.Experts {
			item := plannedItem{layer: layer, index: index}
			var parts [3]part
			for i, name := range expertParts {
				rows, columns := c.expertShape(i)
				w := plannedWeight{Name: expertPrefix(layer, index) + "." + name + ".weight", Class: c.expertClass(layer), Layer: layer, Rows: rows, Columns: columns}
				// All experts of a layer share a layout, so the first one's formats speak for the layer.
				w.Encoding = encodingOf(expertPrefix(layer, 0)+"."+name+".weight", w.Class)
				item.parts[i], parts[i] = w, part{w.Encoding, rows, columns}
			}
			item.layout = newLayout(parts)
			add(item)
		}
	}
	if len(open.items) > 0 {
		shards = append(shards, open)
	}
	if len(shards) > maxShards {
		return nil, fmt.Errorf("%d files would be written, more than %d; choose a larger shard size", len(shards), maxShards)
	}
	for i, s := range shards {
		s.name = fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(shards))
		s.layOut()
	}
	return shards, nil
}

// layOut turns a shard's items into tensors. Wider elements come first, so that each begins at a multiple of its size.
func (s *plannedShard) layOut() {
	s.records, s.stamps = map[string]ExpertLayout{}, map[string]Encoding{}
	type reference struct {
		tensor plannedTensor
		index  *int
	}
	var order []reference
	for i := range s.items {
		p := &s.items[i]
		p.scales = -1
		if p.weight == nil {
			name := p.name()
			s.records[name[:strings.LastIndexByte(name, '.')]] = p.layout
			order = append(order, reference{plannedTensor{name: name, dtype: "U8", shape: []int64{p.layout.SlotBytes}, end: p.layout.SlotBytes}, &p.data})
			continue
		}
		w := p.weight
		t := plannedTensor{name: w.Name, dtype: "U8", end: w.Encoding.DataBytes(w.Rows, w.Columns)}
		if w.Encoding.Format.IsFloat() {
			t.dtype = strings.ToUpper(w.Encoding.String())
			t.shape = []int64{int64(w.Rows), int64(w.Columns)}
			if w.Vector {
				t.shape = t.shape[1:]
			}
		} else {
			t.shape = []int64{t.end}
			s.stamps[w.Name] = w.Encoding
			count := w.Encoding.ScaleCount(w.Rows, w.Columns)
			order = append(order, reference{plannedTensor{name: w.Name + ".qs", dtype: "F32", shape: []int64{count}, end: 4 * count}, &p.scales})
		}
		order = append(order, reference{t, &p.data})
	}
	slices.SortStableFunc(order, func(a, b reference) int {
		return cmp.Compare(dtypeBits[b.tensor.dtype], dtypeBits[a.tensor.dtype])
	})
	var at int64
	for i, r := range order {
		r.tensor.begin, r.tensor.end = at, at+r.tensor.end
		at = r.tensor.end
		*r.index = i
		s.tensors = append(s.tensors, r.tensor)
	}
	s.bytes = at
}

// errorStat measures what quantisation lost: sums of squares of the differences and of the weights themselves.
type errorStat struct {
	Difference, Weights, Largest float64
	Count                        int64
}

func (s *errorStat) add(o errorStat) {
	s.Difference += o.Difference
	s.Weights += o.Weights
	s.Largest = max(s.Largest, o.Largest)
	s.Count += o.Count
}

// Relative is the root of the mean squared difference, relative to the weights' own.
func (s *errorStat) Relative() float64 {
	if s.Weights == 0 {
		return 0
	}
	return math.Sqrt(s.Difference / s.Weights)
}

// errorKey holds the measured errors by class. Like the checksums it is known only after the data, so numbers have a fixed width.
const errorKey = "colibri.error"

func formatErrors(stats map[Class]errorStat) string {
	var b strings.Builder
	b.WriteString("{")
	for i, class := range slices.Sorted(maps.Keys(stats)) {
		if i > 0 {
			b.WriteString(",")
		}
		s := stats[class]
		fmt.Fprintf(&b, `%q:"%.9e %.9e %.9e %015d"`, class, s.Difference, s.Weights, s.Largest, s.Count)
	}
	b.WriteString("}")
	return b.String()
}

func parseErrors(text string) (map[Class]errorStat, error) {
	s := &scanner{text: []byte(text)}
	texts, err := s.stringMap()
	if err != nil {
		return nil, fmt.Errorf("its measured errors: %w", err)
	}
	stats := map[Class]errorStat{}
	for name, numbers := range texts {
		class := slices.Index(classNames[:], name)
		var e errorStat
		if _, err := fmt.Sscanf(numbers, "%g %g %g %d", &e.Difference, &e.Weights, &e.Largest, &e.Count); err != nil || class < 0 {
			return nil, errors.New("its measured errors cannot be read")
		}
		stats[Class(class)] = e
	}
	return stats, nil
}

// headerBytes writes the shard's header, padded with spaces so that the data begins at a multiple of ExpertAlignment. Its
// length does not depend on the values of sums and errors.
func (s *plannedShard) headerBytes(sums map[string]uint32, stats map[Class]errorStat) ([]byte, error) {
	names := make([]string, len(s.tensors))
	for i, t := range s.tensors {
		names[i] = t.name
	}
	metadata := map[string]string{"format": "pt", versionKey: formatVersion, sumsKey: formatSums(names, sums)}
	if len(s.stamps) > 0 {
		metadata[stampKey] = formatStamps(s.stamps)
	}
	if len(s.records) > 0 {
		metadata[recordsKey] = formatRecords(s.records)
	}
	complete := map[Class]errorStat{}
	for _, p := range s.items {
		for _, w := range p.weights() {
			if !w.Encoding.Format.IsFloat() {
				complete[w.Class] = stats[w.Class]
			}
		}
	}
	if len(complete) > 0 {
		metadata[errorKey] = formatErrors(complete)
	}
	var b strings.Builder
	meta, err := json.Marshal(metadata) // sorts the keys
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(&b, `{"__metadata__":%s`, meta)
	for _, t := range s.tensors {
		fmt.Fprintf(&b, `,%s:{"dtype":%q,"shape":%s,"data_offsets":[%d,%d]}`, quote(t.name), t.dtype, strings.ReplaceAll(fmt.Sprint(t.shape), " ", ","), t.begin, t.end)
	}
	b.WriteString("}")
	if pad := alignUp(int64(8+b.Len()), ExpertAlignment) - int64(8+b.Len()); pad > 0 {
		b.WriteString(strings.Repeat(" ", int(pad)))
	}
	if b.Len() > maxHeaderBytes {
		return nil, fmt.Errorf("the header of %s would have %d bytes; choose a smaller shard size", s.name, b.Len())
	}
	return []byte(b.String()), nil
}

func (p *plannedItem) weights() []plannedWeight {
	if p.weight != nil {
		return []plannedWeight{*p.weight}
	}
	return p.parts[:]
}

func formatStamps(stamps map[string]Encoding) string {
	names := make(map[string]string, len(stamps))
	for name, e := range stamps {
		names[name] = e.String()
	}
	text, _ := json.Marshal(names) // a map of strings cannot fail; keys are sorted
	return string(text)
}
