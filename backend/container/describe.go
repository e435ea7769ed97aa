package container

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Description is what people and the window are told about a container. Making it reads headers only.
type Description struct {
	Name     string `json:"name"` // the folder's, without ".colibri"
	Dir      string `json:"dir"`
	Family   string `json:"family"`
	Identity string `json:"identity"`

	Parameters       int64 `json:"parameters"`        // of the main layers
	ActiveParameters int64 `json:"active_parameters"` // of them, used for one token
	MTPParameters    int64 `json:"mtp_parameters"`
	Context          int   `json:"context"`
	Vocabulary       int   `json:"vocabulary"`
	Hidden           int   `json:"hidden"`
	Layers           int   `json:"layers"`
	SparseLayers     int   `json:"sparse_layers"`

	Experts         int `json:"experts"` // in each sparse layer
	ExpertsPerToken int `json:"experts_per_token"`
	// ExpertSizes are the sizes in memory that experts have (main and MTP layers may differ), and how many there are of each.
	ExpertSizes    []ExpertSize `json:"expert_sizes"`
	ResidentBytes  int64        `json:"resident_bytes"`
	ExpertBytes    int64        `json:"expert_bytes"`
	FileBytes      int64        `json:"file_bytes"`
	Files          int          `json:"files"`
	ReadsPerExpert int          `json:"reads_per_expert"` // 1: our own records
	BytesPerToken  int64        `json:"bytes_per_token"`  // experts read for one token when none is in memory
	// Multiplied are the bytes of weights that one token multiplies with, its share of the experts included, by encoding.
	Multiplied map[string]int64 `json:"multiplied_bytes"`
	// Routed are, of them, the routed experts'. AttentionOps are the operations of all layers' attention for one token and one position that
	// it sees. Both are for planning.
	Routed       map[string]int64 `json:"-"`
	AttentionOps int64            `json:"-"`

	Formats []ClassFormat `json:"formats"`

	MTPLayers       int `json:"mtp_layers"`
	IndexerLayers   int `json:"indexer_layers"` // layers that choose positions themselves
	IndexTopK       int `json:"index_topk"`
	KVBytesPerToken int `json:"kv_bytes_per_token"` // float32 cache of all main layers

	HasTokenizer bool     `json:"has_tokenizer"`
	Warnings     []string `json:"warnings"`
	Ignored      []string `json:"ignored"` // tensors that are not used
}

// ExpertSize is one size of expert.
type ExpertSize struct {
	Bytes   int64  `json:"bytes"`
	Count   int    `json:"count"`
	Formats string `json:"formats"` // "int4-g64", or the three where they differ
}

// ClassFormat is how one class of weights is stored. RelativeError is what our converter measured, 0 where it did not.
type ClassFormat struct {
	Class         string   `json:"class"`
	Formats       []string `json:"formats"`
	Bytes         int64    `json:"bytes"`
	RelativeError float64  `json:"relative_error,omitempty"`
}

// Describe opens a directory, describes it and closes it again.
func Describe(dir string) (*Description, error) {
	c, err := Open(dir)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	return c.Describe()
}

// Describe says what the container is.
func (c *Container) Describe() (*Description, error) {
	m := c.Config
	d := &Description{
		Name: strings.TrimSuffix(filepath.Base(c.Dir), ".colibri"), Dir: c.Dir, Family: m.Family, Context: m.MaxPositions, Vocabulary: m.Vocabulary, Hidden: m.Hidden,
		Layers: m.Layers, Experts: m.MoE.Experts, ExpertsPerToken: m.MoE.PerToken, MTPLayers: m.MTPLayers, Files: len(c.Files),
		ResidentBytes: c.ResidentBytes(), ExpertBytes: c.ExpertBytes(), Warnings: slices.Clone(c.Notes), Ignored: c.Ignored, KVBytesPerToken: m.kvBytesPerToken(),
		Multiplied: map[string]int64{}, Routed: map[string]int64{}, AttentionOps: m.attentionOps(),
	}
	var err error
	if d.Identity, err = c.Identity(); err != nil {
		return nil, err
	}
	for _, f := range c.Files {
		d.FileBytes += f.Bytes
	}
	for _, w := range c.weights {
		c.count(d, w)
	}
	for layer := range m.Layers {
		if m.Sparse[layer] {
			d.SparseLayers++
		}
		if x := &m.Attention.Index; x.Heads > 0 && x.Full[layer] {
			d.IndexerLayers++
			d.IndexTopK = x.TopK
		}
	}
	c.describeExperts(d)
	reports, err := c.classReports()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Dir, err)
	}
	for _, r := range reports {
		f := ClassFormat{Class: r.Class.String(), Bytes: r.Bytes, RelativeError: r.RelativeError}
		for _, e := range r.Encodings {
			f.Formats = append(f.Formats, e.String())
		}
		d.warnOf(r)
		d.Formats = append(d.Formats, f)
	}
	_, err = os.Stat(filepath.Join(c.Dir, "tokenizer.json"))
	if d.HasTokenizer = err == nil; !d.HasTokenizer {
		d.Warnings = append(d.Warnings, "there is no tokenizer.json, so the model cannot read or write text; copy the one that belongs to it into the folder")
	}
	return d, nil
}

// count adds a weight to the numbers of parameters.
func (c *Container) count(d *Description, w *Weight) {
	n := int64(w.Rows) * int64(w.Columns)
	if w.Layer >= c.Config.Layers {
		d.MTPParameters += n
		return
	}
	d.Parameters += n
	multiplied := w.Data.Bytes + w.Scales.Bytes
	switch {
	case w.Class == RoutedExperts:
		// An equal share of all experts' weights; PerToken of Experts run.
		d.ActiveParameters += n * int64(c.Config.MoE.PerToken) / int64(c.Config.MoE.Experts)
		multiplied = multiplied * int64(c.Config.MoE.PerToken) / int64(c.Config.MoE.Experts)
	case w.Name == "model.embed_tokens.weight" && !c.Config.TiedEmbeddings:
		d.ActiveParameters += int64(w.Columns) // one row
		multiplied = 0
	default:
		d.ActiveParameters += n
	}
	if w.Rows > 1 && w.Columns > 1 { // norms and biases are none of these
		d.Multiplied[w.Encoding.String()] += multiplied
		if w.Class == RoutedExperts {
			d.Routed[w.Encoding.String()] += multiplied
		}
	}
}

// MultipliedBytes are those of all encodings: what decoding a token cannot avoid reading.
func (d *Description) MultipliedBytes() (sum int64) {
	for _, bytes := range d.Multiplied {
		sum += bytes
	}
	return sum
}

func (c *Container) describeExperts(d *Description) {
	sizes := map[ExpertSize]int{}
	for layout, n := range c.ExpertLayouts() {
		formats := []string{layout.Gate.Encoding.String(), layout.Up.Encoding.String(), layout.Down.Encoding.String()}
		if formats = slices.Compact(formats); len(formats) > 1 {
			formats = []string{layout.Gate.Encoding.String(), layout.Up.Encoding.String(), layout.Down.Encoding.String()}
		}
		sizes[ExpertSize{Bytes: layout.SlotBytes, Formats: strings.Join(formats, ", ")}] += n
	}
	for s, n := range sizes {
		s.Count = n
		d.ExpertSizes = append(d.ExpertSizes, s)
	}
	slices.SortFunc(d.ExpertSizes, func(a, b ExpertSize) int { return compare(int64(b.Count), int64(a.Count)) })
	for layer, sparse := range c.Config.Sparse[:c.Config.Layers] {
		if !sparse {
			continue
		}
		if e, err := c.Expert(layer, 0); err == nil {
			d.BytesPerToken += e.Layout.SlotBytes * int64(c.Config.MoE.PerToken)
			d.ReadsPerExpert = max(d.ReadsPerExpert, len(e.Reads))
		}
	}
}

// warnOf adds what is known to go wrong with a class's formats.
func (d *Description) warnOf(r ClassReport) {
	for _, e := range r.Encodings {
		if r.Class == MTPHead && coarse(e.Format) {
			d.Warnings = append(d.Warnings, fmt.Sprintf("the MTP layers are %s: below 8 bits their drafts are rarely accepted; convert the original checkpoint, whose MTP layers become int8", e))
			return
		}
	}
	// Grouped weights narrower than a group are int4-row too; only experts without any groups are meant.
	if r.Class == RoutedExperts && !slices.ContainsFunc(r.Encodings, func(e Encoding) bool { return e.Format != Int4Row }) {
		d.Warnings = append(d.Warnings, "the experts are int4-row, which costs several points of quality and makes some answers endless; int4-g64 is much better")
	}
}

func (c *Config) kvBytesPerToken() int {
	a := &c.Attention
	perLayer := 2 * a.KVHeads * a.HeadDim
	if a.Kind == MLA {
		perLayer = a.KVRank + c.RoPE.Dim
	}
	total := perLayer * c.Layers
	for layer := range c.Layers {
		if a.Index.Heads > 0 && a.Index.Full[layer] {
			total += a.Index.HeadDim
		}
	}
	return 4 * total
}

// attentionOps counts two operations for each number of a key and of a value, in every head: with MLA those of the latent.
func (c *Config) attentionOps() int64 {
	a := &c.Attention
	width := 2 * a.HeadDim
	if a.Kind == MLA {
		width = 2*a.KVRank + c.RoPE.Dim
	}
	return 2 * int64(c.Layers) * int64(a.Heads) * int64(width)
}

// Size says how large a container of a configuration would be, without any file: for planning what a machine can run.
type Size struct {
	ResidentBytes int64
	ExpertBytes   int64 // all routed experts, as records
	RecordBytes   int64 // one routed expert of the main layers
	Experts       int
}

// SizeOf computes the size of what Convert would write from a float checkpoint of this configuration.
func SizeOf(c *Config, options Options) Size {
	var s Size
	c.resident(func(t tensorSpec) {
		e := options.encoding(t.class, Encoding{})
		s.ResidentBytes += e.DataBytes(t.rows, t.columns) + 4*e.ScaleCount(t.rows, t.columns)
	})
	for layer, sparse := range c.Sparse {
		if !sparse {
			continue
		}
		var parts [3]part
		for i := range parts {
			rows, columns := c.expertShape(i)
			parts[i] = part{options.encoding(c.expertClass(layer), Encoding{}), rows, columns}
		}
		layout := newLayout(parts)
		s.ExpertBytes += layout.SlotBytes * int64(c.MoE.Experts)
		s.Experts += c.MoE.Experts
		if layer < c.Layers {
			s.RecordBytes = layout.SlotBytes
		}
	}
	return s
}

// String gives a description in the few lines that "colibri inspect" prints.
func (d *Description) String() string {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	line("model", "%s (%s)", d.Name, d.Family)
	line("parameters", "%s, of which %s are used for a token", short(d.Parameters), short(d.ActiveParameters))
	line("layers", "%d, of which %d have experts; hidden size %d; context %d", d.Layers, d.SparseLayers, d.Hidden, d.Context)
	line("experts", "%d in a layer, %d used for a token; %s in all", d.Experts, d.ExpertsPerToken, bytesText(d.ExpertBytes))
	for _, s := range d.ExpertSizes {
		line("", "%d of %s (%s)", s.Count, bytesText(s.Bytes), s.Formats)
	}
	line("", "%s to read for a token when none is in memory, %d read(s) an expert", bytesText(d.BytesPerToken), d.ReadsPerExpert)
	line("resident", "%s", bytesText(d.ResidentBytes))
	line("files", "%d, %s", d.Files, bytesText(d.FileBytes))
	for _, f := range d.Formats {
		lost := ""
		if f.RelativeError > 0 {
			lost = fmt.Sprintf(", rounding error %.2g %%", 100*f.RelativeError)
		}
		line(f.Class, "%s, %s%s", strings.Join(f.Formats, " and "), bytesText(f.Bytes), lost)
	}
	if d.MTPLayers > 0 {
		line("drafts", "%d layer(s) for multi-token prediction, %s parameters", d.MTPLayers, short(d.MTPParameters))
	}
	if d.IndexerLayers > 0 {
		line("indexer", "%d layers choose the %d positions that attention reads", d.IndexerLayers, d.IndexTopK)
	}
	line("cache", "%s a token", bytesText(int64(d.KVBytesPerToken)))
	if len(d.Ignored) > 0 {
		line("unused", "%s", few(d.Ignored))
	}
	for _, w := range d.Warnings {
		line("warning", "%s", w)
	}
	return b.String()
}

// short writes a number of parameters as people say it: 744 B, 42.4 M.
func short(n int64) string { return scaled(n, [...]string{"", " K", " M", " B", " T"}) }

func bytesText(n int64) string {
	return scaled(n, [...]string{" bytes", " KB", " MB", " GB", " TB"})
}

// scaled writes three digits and the unit of their thousands.
func scaled(n int64, units [5]string) string {
	v, unit := float64(n), 0
	for v >= 999.5 && unit < len(units)-1 {
		v /= 1000
		unit++
	}
	if unit == 0 {
		return fmt.Sprintf("%d%s", n, units[0])
	}
	return fmt.Sprintf("%.*f%s", max(0, 2-int(math.Log10(v))), v, units[unit])
}
