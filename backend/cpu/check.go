package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// The checks of every call: the C side trusts sizes, so each of them is compared here with the memory it is about. They cost
// well under a microsecond a call and name the argument that is wrong.

// Limits of the C side's fixed arrays; no published model comes near.
const (
	mostExperts    = 4096
	mostIndexHeads = 256
	mostRopeDim    = 1024
)

func supported(e container.Encoding) error {
	switch e.Format {
	case container.F32, container.BF16, container.F16, container.Int8Row, container.Int4Row, container.Int2Row, container.Int3Group64,
		container.FP8Block128:
		return nil
	case container.Int4Group:
		if e.Group >= 16 && e.Group%16 == 0 {
			return nil
		}
	}
	return fmt.Errorf("no kernel for %s", e)
}

func checkBlock(name string, w *container.Block, rows, columns int) error {
	if w == nil || !w.Present() {
		return fmt.Errorf("cpu: %s is missing", name)
	}
	if err := supported(w.Encoding); err != nil {
		return fmt.Errorf("cpu: %s: %w", name, err)
	}
	if w.Rows != rows || w.Columns != columns {
		return fmt.Errorf("cpu: %s is [%d, %d]; it must be [%d, %d]", name, w.Rows, w.Columns, rows, columns)
	}
	if w.Columns <= 0 || w.Rows > math.MaxInt32/2 || w.Columns > math.MaxInt32/16 {
		return fmt.Errorf("cpu: %s is [%d, %d], which no weight can be", name, w.Rows, w.Columns)
	}
	if int64(len(w.Data)) < w.DataBytes(rows, columns) || int64(len(w.Scales)) < w.ScaleCount(rows, columns) {
		return fmt.Errorf("cpu: %s as %s needs %d bytes and %d scales; it has %d and %d", name, w.Encoding, w.DataBytes(rows, columns),
			w.ScaleCount(rows, columns), len(w.Data), len(w.Scales))
	}
	if len(w.Biases) != 0 {
		return fmt.Errorf("cpu: %s has biases, which %s does not", name, w.Encoding)
	}
	if uintptr(unsafe.Pointer(unsafe.SliceData(w.Data)))%4 != 0 {
		return fmt.Errorf("cpu: %s does not start at a multiple of 4 bytes", name)
	}
	return nil
}

func checkFloats(name string, x []float32, rows, columns int) error {
	if rows < 0 || rows > math.MaxInt32/2 || len(x) < rows*columns {
		return fmt.Errorf("cpu: %s has %d numbers; %d rows of %d are needed", name, len(x), rows, columns)
	}
	return nil
}

func checkVector(name string, x []float32, n int) error {
	if len(x) != n {
		return fmt.Errorf("cpu: %s has %d numbers, not %d", name, len(x), n)
	}
	return nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkEmbed(table *container.Block, ids []int32, x []float32) error {
	if table == nil {
		return fmt.Errorf("cpu: the embedding table is missing")
	}
	if err := first(checkBlock("the embedding table", table, table.Rows, table.Columns), checkFloats("x", x, len(ids), table.Columns)); err != nil {
		return err
	}
	for _, id := range ids {
		if id < 0 || int(id) >= table.Rows {
			return fmt.Errorf("cpu: token %d is not in the table of %d", id, table.Rows)
		}
	}
	return nil
}

func checkLinear(w *container.Block, x, y []float32, rows int) error {
	if w == nil {
		return fmt.Errorf("cpu: the weight is missing")
	}
	return first(checkBlock("the weight", w, w.Rows, w.Columns), checkFloats("x", x, rows, w.Columns), checkFloats("y", y, rows, w.Rows))
}

func checkNormalise(weight, x, y []float32, rows int) error {
	if len(weight) == 0 {
		return fmt.Errorf("cpu: the norm's weight is missing")
	}
	return first(checkFloats("x", x, rows, len(weight)), checkFloats("y", y, rows, len(weight)))
}

func checkHead(h *compute.HeadCall) error {
	if h.Head == nil {
		return fmt.Errorf("cpu: the head is missing")
	}
	return first(checkBlock("the head", h.Head, h.Head.Rows, h.Head.Columns), checkVector("the final norm", h.Norm, h.Head.Columns),
		checkFloats("x", h.X, h.Rows, h.Head.Columns), checkFloats("normed", h.Normed, h.Rows, h.Head.Columns),
		checkFloats("logits", h.Logits, h.Rows, h.Head.Rows))
}

func checkCombine(c *compute.CombineCall) error {
	if c.PerToken < 1 || c.Hidden < 1 || c.PerToken > mostExperts {
		return fmt.Errorf("cpu: %d experts a token of width %d", c.PerToken, c.Hidden)
	}
	return first(checkFloats("gates", c.Gates, c.Rows, c.PerToken), checkFloats("output", c.Output, c.Rows, c.PerToken*c.Hidden),
		checkFloats("shared", c.Shared, c.Rows, c.Hidden), checkFloats("x", c.X, c.Rows, c.Hidden))
}

func checkMoE(m *compute.MoECall) error {
	if m.Hidden < 1 || m.Inner < 1 || m.Hidden > math.MaxInt32/16 || m.Inner > math.MaxInt32/16 {
		return fmt.Errorf("cpu: experts of width %d and %d", m.Hidden, m.Inner)
	}
	rows, slots := len(m.Input)/m.Hidden, len(m.Output)/m.Hidden
	for i := range m.Work {
		w := &m.Work[i]
		if err := first(checkBlock("an expert's gate", &w.Gate, m.Inner, m.Hidden), checkBlock("an expert's up", &w.Up, m.Inner, m.Hidden),
			checkBlock("an expert's down", &w.Down, m.Hidden, m.Inner)); err != nil {
			return err
		}
		if len(w.Rows) != len(w.Slots) {
			return fmt.Errorf("cpu: an expert has %d rows and %d slots", len(w.Rows), len(w.Slots))
		}
		for j := range w.Rows {
			if w.Rows[j] < 0 || int(w.Rows[j]) >= rows || w.Slots[j] < 0 || int(w.Slots[j]) >= slots {
				return fmt.Errorf("cpu: an expert's row %d goes to slot %d; there are %d rows and %d slots", w.Rows[j], w.Slots[j], rows, slots)
			}
		}
	}
	return nil
}

func checkLayer(l *compute.LayerCall) error {
	if l.Config == nil || l.Weights == nil || l.Index < 0 || l.Index >= len(l.Config.Sparse) {
		return fmt.Errorf("cpu: layer %d has no configuration or no weights", l.Index)
	}
	err := first(checkRows(l), checkAttention(l))
	if !l.CachesOnly {
		err = first(err, checkFeedForward(l))
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", l.Index, err)
	}
	return nil
}

func checkRows(l *compute.LayerCall) error {
	c := l.Config
	if c.Hidden < 1 || c.Hidden > math.MaxInt32/16 || c.RoPE.Dim < 2 || c.RoPE.Dim%2 != 0 || c.RoPE.Dim > mostRopeDim {
		return fmt.Errorf("cpu: a width of %d with %d rotated dimensions", c.Hidden, c.RoPE.Dim)
	}
	for i, row := range l.Rows {
		if row.TieSpan != 0 && (row.TieSpan <= row.Position || row.TieSpan > math.MaxInt32/2) {
			return fmt.Errorf("cpu: row %d at position %d breaks ties over %d positions", i, row.Position, row.TieSpan)
		}
		if row.Cache < 0 || row.Cache >= len(l.Caches) {
			return fmt.Errorf("cpu: row %d is of cache %d of %d", i, row.Cache, len(l.Caches))
		}
		if row.Position < 0 || row.Position >= l.Caches[row.Cache].Capacity || row.Position >= math.MaxInt32/2 {
			return fmt.Errorf("cpu: row %d has position %d in a cache of %d", i, row.Position, l.Caches[row.Cache].Capacity)
		}
	}
	return first(checkFloats("x", l.X, len(l.Rows), c.Hidden), checkFloats("the cosines", l.Cos, len(l.Rows), c.RoPE.Dim/2),
		checkFloats("the sines", l.Sin, len(l.Rows), c.RoPE.Dim/2), checkVector("the input norm", l.Weights.InputNorm, c.Hidden),
		checkVector("the post-attention norm", l.Weights.PostNorm, c.Hidden))
}

func checkCache(i int, part string, memory []float32, capacity, width int) error {
	if capacity < 0 || len(memory) < capacity*width {
		return fmt.Errorf("cpu: the %s of cache %d have %d numbers; %d positions of %d are needed", part, i, len(memory), capacity, width)
	}
	return nil
}

func checkAttention(l *compute.LayerCall) error {
	a, w, hidden := &l.Config.Attention, l.Weights, l.Config.Hidden
	if a.Heads < 1 || a.Heads > math.MaxInt16 {
		return fmt.Errorf("cpu: %d attention heads", a.Heads)
	}
	switch a.Kind {
	case container.MLA:
		return checkMLA(l)
	case container.GQA:
		if a.KVHeads < 1 || a.Heads%a.KVHeads != 0 || a.HeadDim < l.Config.RoPE.Dim || a.HeadDim > math.MaxInt16 {
			return fmt.Errorf("cpu: %d heads of %d over %d key heads, %d dimensions rotated", a.Heads, a.HeadDim, a.KVHeads, l.Config.RoPE.Dim)
		}
		query, kv := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
		err := first(checkBlock("the query projection", &w.Query, query, hidden), checkBlock("the key projection", &w.Key, kv, hidden),
			checkBlock("the value projection", &w.Value, kv, hidden), checkBlock("the output projection", &w.Output, hidden, query))
		if err == nil && a.Bias {
			err = first(checkVector("the query bias", w.QueryBias, query), checkVector("the key bias", w.KeyBias, kv), checkVector("the value bias", w.ValueBias, kv))
		}
		switch a.QKNorm {
		case container.NoQKNorm:
		case container.QKNormHead:
			err = first(err, checkVector("the query norm", w.QueryNorm, a.HeadDim), checkVector("the key norm", w.KeyNorm, a.HeadDim))
		case container.QKNormFull:
			err = first(err, checkVector("the query norm", w.QueryNorm, query), checkVector("the key norm", w.KeyNorm, kv))
		default:
			err = first(err, fmt.Errorf("cpu: query-key norm kind %d is not known", a.QKNorm))
		}
		for i := range l.Caches {
			cache := &l.Caches[i]
			err = first(err, checkCache(i, "keys", cache.Keys, cache.Capacity, kv), checkCache(i, "values", cache.Values, cache.Capacity, kv))
		}
		return err
	}
	return fmt.Errorf("cpu: attention kind %d is not known", a.Kind)
}

func checkMLA(l *compute.LayerCall) error {
	c, w := l.Config, l.Weights
	a := &c.Attention
	if a.KVRank < 1 || a.NopeDim < 1 || a.ValueDim < 1 || a.QueryRank < 0 || max(a.KVRank, a.NopeDim, a.ValueDim, a.QueryRank) > math.MaxInt16 {
		return fmt.Errorf("cpu: latent attention of ranks %d and %d, heads of %d and %d", a.QueryRank, a.KVRank, a.NopeDim, a.ValueDim)
	}
	input := c.Hidden
	if a.QueryRank > 0 {
		input = a.QueryRank
		if err := first(checkBlock("q_a", &w.QueryA, a.QueryRank, c.Hidden), checkVector("q_a's norm", w.QueryANorm, a.QueryRank)); err != nil {
			return err
		}
	}
	err := first(checkBlock("q_b", &w.QueryB, a.Heads*(a.NopeDim+c.RoPE.Dim), input), checkBlock("kv_a", &w.KVA, a.KVRank+c.RoPE.Dim, c.Hidden),
		checkVector("kv_a's norm", w.KVANorm, a.KVRank), checkBlock("kv_b", &w.KVB, a.Heads*(a.NopeDim+a.ValueDim), a.KVRank),
		checkBlock("the output projection", &w.Output, c.Hidden, a.Heads*a.ValueDim))
	if err != nil {
		return err
	}
	x := &a.Index
	full := false
	if x.Heads > 0 {
		if x.TopK < 1 || x.TopK > math.MaxInt32/2 || l.Index >= len(x.Full) || l.Selection == nil {
			return fmt.Errorf("cpu: the indexer chooses %d positions, and the call has room for none", x.TopK)
		}
		if len(l.Selection.Counts) < len(l.Rows) || len(l.Selection.Positions) < len(l.Rows)*x.TopK {
			return fmt.Errorf("cpu: the selection has room for %d rows and %d positions; %d rows of %d are needed", len(l.Selection.Counts),
				len(l.Selection.Positions), len(l.Rows), x.TopK)
		}
		full = x.Full[l.Index]
		if full && len(l.Selection.Tied) < len(l.Rows) {
			return fmt.Errorf("cpu: the selection has room to say for %d rows whether scores were equal; %d rows are needed", len(l.Selection.Tied), len(l.Rows))
		}
	}
	if full {
		if x.Heads > mostIndexHeads || x.HeadDim < c.RoPE.Dim || x.HeadDim > math.MaxInt16 || a.QueryRank == 0 {
			return fmt.Errorf("cpu: an indexer of %d heads of %d with a query rank of %d", x.Heads, x.HeadDim, a.QueryRank)
		}
		err = first(checkBlock("the indexer's wq_b", &w.IndexQuery, x.Heads*x.HeadDim, a.QueryRank), checkBlock("the indexer's wk", &w.IndexKey, x.HeadDim, c.Hidden),
			checkBlock("the indexer's weights_proj", &w.IndexScore, x.Heads, c.Hidden), checkVector("the indexer's k_norm", w.IndexKeyNorm, x.HeadDim),
			checkVector("the indexer's k_norm bias", w.IndexKeyNormBias, x.HeadDim))
		if err != nil {
			return err
		}
	} else if x.Heads > 0 {
		if err := checkSelection(l); err != nil {
			return err
		}
	}
	for i := range l.Caches {
		cache := &l.Caches[i]
		err := first(checkCache(i, "latents", cache.Latent, cache.Capacity, a.KVRank), checkCache(i, "rotated keys", cache.Rope, cache.Capacity, c.RoPE.Dim))
		if err == nil && full {
			err = checkCache(i, "index keys", cache.Index, cache.Capacity, x.HeadDim)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// checkSelection: a shared layer reads what it is given.
func checkSelection(l *compute.LayerCall) error {
	topK := l.Config.Attention.Index.TopK
	for i, row := range l.Rows {
		count := int(l.Selection.Counts[i])
		if count < -1 || count == 0 || count > topK || count > row.Position+1 {
			return fmt.Errorf("cpu: row %d at position %d has a selection of %d", i, row.Position, count)
		}
		for _, p := range l.Selection.Positions[i*topK : i*topK+max(count, 0)] {
			if p < 0 || int(p) > row.Position {
				return fmt.Errorf("cpu: row %d at position %d has position %d selected", i, row.Position, p)
			}
		}
	}
	return nil
}

func checkFeedForward(l *compute.LayerCall) error {
	c, w, m := l.Config, l.Weights, &l.Config.MoE
	if !c.Sparse[l.Index] {
		return checkNetwork(l, c.DenseInner)
	}
	if err := checkShared(l); err != nil {
		return err
	}
	if m.Experts < 1 || m.Experts > mostExperts || m.PerToken < 1 || m.PerToken > m.Experts || m.Groups < 1 || m.Experts%m.Groups != 0 ||
		m.TopGroups < 1 || m.TopGroups > m.Groups || m.PerToken > m.Experts/m.Groups*m.TopGroups {
		return fmt.Errorf("cpu: %d of %d experts in %d of %d groups", m.PerToken, m.Experts, m.TopGroups, m.Groups)
	}
	if m.Scoring != container.Softmax && m.Scoring != container.Sigmoid {
		return fmt.Errorf("cpu: router scoring %d is not known", m.Scoring)
	}
	err := checkBlock("the router", &w.Router, m.Experts, c.Hidden)
	if err == nil && m.SelectionBias {
		err = checkVector("the router's bias", w.RouterBias, m.Experts)
	}
	if err == nil && len(l.Experts) < len(l.Rows)*m.PerToken {
		err = fmt.Errorf("cpu: room for %d expert ids; %d rows of %d are needed", len(l.Experts), len(l.Rows), m.PerToken)
	}
	return first(err, checkFloats("gates", l.Gates, len(l.Rows), m.PerToken))
}

// checkShared is about the shared experts of a sparse layer, which may be none.
func checkShared(l *compute.LayerCall) error {
	c := l.Config
	if c == nil || l.Weights == nil || l.Index < 0 || l.Index >= len(c.Sparse) || !c.Sparse[l.Index] {
		return fmt.Errorf("cpu: layer %d has no shared experts", l.Index)
	}
	return first(checkNetwork(l, c.MoE.SharedInner), checkFloats("normed", l.Normed, len(l.Rows), c.Hidden),
		checkFloats("shared", l.Shared, len(l.Rows), c.Hidden))
}

// checkNetwork is about a network of width inner: the dense one, or the shared experts.
func checkNetwork(l *compute.LayerCall, inner int) error {
	c, w := l.Config, l.Weights
	switch {
	case inner < 0 || inner > math.MaxInt32/16 || (inner == 0 && !c.Sparse[l.Index]):
		return fmt.Errorf("cpu: a feed-forward network of width %d", inner)
	case inner > 0:
		return first(checkBlock("the gate projection", &w.Gate, inner, c.Hidden), checkBlock("the up projection", &w.Up, inner, c.Hidden),
			checkBlock("the down projection", &w.Down, c.Hidden, inner))
	case w.Gate.Present():
		return fmt.Errorf("cpu: there are shared experts, and the configuration has none")
	}
	return nil
}
