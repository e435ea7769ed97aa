package metal

import (
	"fmt"
	"math"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// The checks of this side: whether slices are as long as a call says, so that the C side may take their addresses. Weights are
// checked there, where their formats are known.

func checkFloats(name string, x []float32, rows, columns int) error {
	if rows < 0 || columns < 0 || rows > math.MaxInt32/2 || columns > math.MaxInt32/16 || len(x) < rows*columns {
		return fmt.Errorf("metal: %s has %d numbers; %d rows of %d are needed", name, len(x), rows, columns)
	}
	return nil
}

// checkVector accepts a vector that is as long as it must be.
func checkVector(name string, x []float32, n int) error {
	if len(x) != n {
		return fmt.Errorf("metal: %s has %d numbers, not %d", name, len(x), n)
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

func checkWeight(name string, w *container.Block) error {
	if w == nil || !w.Present() || w.Columns < 1 || w.Rows > math.MaxInt32/2 || w.Columns > math.MaxInt32/16 {
		return fmt.Errorf("metal: %s is missing or has a size that no weight can have", name)
	}
	return nil
}

func checkEmbed(table *container.Block, ids []int32, x []float32) error {
	if err := checkWeight("the embedding table", table); err != nil {
		return err
	}
	return checkFloats("x", x, len(ids), table.Columns)
}

func checkLinear(w *container.Block, x, y []float32, rows int) error {
	if err := checkWeight("the weight", w); err != nil {
		return err
	}
	return first(checkFloats("x", x, rows, w.Columns), checkFloats("y", y, rows, w.Rows))
}

func checkNormalise(weight, x, y []float32, rows int) error {
	if len(weight) == 0 {
		return fmt.Errorf("metal: the norm's weight is missing")
	}
	return first(checkFloats("x", x, rows, len(weight)), checkFloats("y", y, rows, len(weight)))
}

func checkHead(h *compute.HeadCall) error {
	if err := checkWeight("the head", h.Head); err != nil {
		return err
	}
	return first(checkVector("the final norm", h.Norm, h.Head.Columns), checkFloats("x", h.X, h.Rows, h.Head.Columns),
		checkFloats("normed", h.Normed, h.Rows, h.Head.Columns), checkFloats("logits", h.Logits, h.Rows, h.Head.Rows))
}

func checkCombine(c *compute.CombineCall) error {
	if c.PerToken < 1 || c.Hidden < 1 || c.PerToken > math.MaxInt16 {
		return fmt.Errorf("metal: %d experts a token of width %d", c.PerToken, c.Hidden)
	}
	return first(checkFloats("gates", c.Gates, c.Rows, c.PerToken), checkFloats("output", c.Output, c.Rows, c.PerToken*c.Hidden),
		checkFloats("shared", c.Shared, c.Rows, c.Hidden), checkFloats("x", c.X, c.Rows, c.Hidden))
}

func checkMoE(m *compute.MoECall) error {
	if m.Hidden < 1 || m.Inner < 1 || m.Hidden > math.MaxInt32/16 || m.Inner > math.MaxInt32/16 {
		return fmt.Errorf("metal: experts of width %d and %d", m.Hidden, m.Inner)
	}
	for i := range m.Work {
		if w := &m.Work[i]; len(w.Rows) != len(w.Slots) {
			return fmt.Errorf("metal: an expert has %d rows and %d slots", len(w.Rows), len(w.Slots))
		}
	}
	return nil
}

func checkLayer(l *compute.LayerCall) error {
	c := l.Config
	if c == nil || l.Weights == nil || l.Index < 0 || l.Index >= len(c.Sparse) || c.Hidden < 1 {
		return fmt.Errorf("metal: layer %d has no configuration or no weights", l.Index)
	}
	if len(l.Rows) > 0 && len(l.Caches) == 0 {
		return fmt.Errorf("metal: layer %d: rows without a cache", l.Index)
	}
	a, m, rows, w := &c.Attention, &c.MoE, len(l.Rows), l.Weights
	for i, row := range l.Rows {
		if row.Cache < 0 || row.Cache >= len(l.Caches) || row.Position < 0 || row.Position >= l.Caches[row.Cache].Capacity || row.Position > math.MaxInt32/2 {
			return fmt.Errorf("metal: layer %d: row %d has position %d of cache %d, which is not there", l.Index, i, row.Position, row.Cache)
		}
		if row.TieSpan != 0 && (row.TieSpan <= row.Position || row.TieSpan > math.MaxInt32/2) {
			return fmt.Errorf("metal: layer %d: row %d at position %d settles ties over %d positions", l.Index, i, row.Position, row.TieSpan)
		}
	}
	err := first(checkFloats("x", l.X, rows, c.Hidden), checkFloats("the cosines", l.Cos, rows, c.RoPE.Dim/2), checkFloats("the sines", l.Sin, rows, c.RoPE.Dim/2),
		checkVector("the attention norm", w.InputNorm, c.Hidden), checkVector("the feed-forward norm", w.PostNorm, c.Hidden))
	for i := range l.Caches {
		k := &l.Caches[i]
		if a.Kind == container.MLA {
			err = first(err, checkFloats("a latent cache", k.Latent, k.Capacity, a.KVRank), checkFloats("a rotated cache", k.Rope, k.Capacity, c.RoPE.Dim))
		} else {
			err = first(err, checkFloats("a key cache", k.Keys, k.Capacity, a.KVHeads*a.HeadDim), checkFloats("a value cache", k.Values, k.Capacity, a.KVHeads*a.HeadDim))
		}
	}
	if a.Kind == container.MLA {
		err = first(err, checkVector("the latent norm", w.KVANorm, a.KVRank), checkVector("the norm of query projection a", w.QueryANorm, a.QueryRank))
	} else {
		width := map[container.QKNorm]int{container.QKNormHead: a.HeadDim, container.QKNormFull: a.HeadDim * a.Heads}[a.QKNorm]
		narrow := map[container.QKNorm]int{container.QKNormHead: a.HeadDim, container.QKNormFull: a.HeadDim * a.KVHeads}[a.QKNorm]
		err = first(err, checkVector("the query norm", w.QueryNorm, width), checkVector("the key norm", w.KeyNorm, narrow))
		if a.Bias {
			err = first(err, checkVector("the query bias", w.QueryBias, a.Heads*a.HeadDim), checkVector("the key bias", w.KeyBias, a.KVHeads*a.HeadDim),
				checkVector("the value bias", w.ValueBias, a.KVHeads*a.HeadDim))
		}
	}
	if a.Index.Heads > 0 {
		if l.Selection == nil || len(l.Selection.Counts) < rows || len(l.Selection.Positions) < rows*a.Index.TopK || l.Index >= len(a.Index.Full) {
			return fmt.Errorf("metal: layer %d has no room for a selection of %d rows of %d", l.Index, rows, a.Index.TopK)
		}
		if a.Index.Full[l.Index] {
			if len(l.Selection.Tied) < rows {
				return fmt.Errorf("metal: layer %d has room to say for %d rows whether index scores were equal; %d rows are needed", l.Index, len(l.Selection.Tied), rows)
			}
			err = first(err, checkVector("the index key norm", w.IndexKeyNorm, a.Index.HeadDim), checkVector("the index key norm's bias", w.IndexKeyNormBias, a.Index.HeadDim))
			for i := range l.Caches {
				err = first(err, checkFloats("an index cache", l.Caches[i].Index, l.Caches[i].Capacity, a.Index.HeadDim))
			}
		}
	}
	if c.Sparse[l.Index] && !l.CachesOnly {
		err = first(err, checkFloats("gates", l.Gates, rows, m.PerToken), checkFloats("normed", l.Normed, rows, c.Hidden), checkFloats("shared", l.Shared, rows, c.Hidden))
		if m.SelectionBias {
			err = first(err, checkVector("the router's bias", w.RouterBias, m.Experts))
		}
		if len(l.Experts) < rows*m.PerToken {
			err = first(err, fmt.Errorf("metal: room for %d expert ids; %d rows of %d are needed", len(l.Experts), rows, m.PerToken))
		}
	}
	if err != nil {
		return fmt.Errorf("layer %d: %w", l.Index, err)
	}
	return nil
}
