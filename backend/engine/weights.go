package engine

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// weights are the resident weights by role.
type weights struct {
	embedding, head container.Block
	finalNorm       []float32
	layers          []compute.LayerWeights // the multi-token-prediction layer's included, if it is used
	mtp             mtpWeights
}

// mtpWeights are what a multi-token-prediction layer has beside an ordinary layer's weights.
type mtpWeights struct {
	embeddingNorm, hiddenNorm, headNorm []float32
	join                                container.Block // [hidden, 2·hidden], the embedding's half first
	head                                container.Block // of the main layers' head, what drafts use
}

// role is where a weight belongs: a block that is used as it is stored, or floats.
type role struct {
	block  *container.Block
	vector *[]float32
	router bool // a block that is wanted as float32
}

// roleOf finds the place of a resident weight by its name in the checkpoint.
func (w *weights) roleOf(name string) (role, bool) {
	switch name {
	case "model.embed_tokens.weight":
		return role{block: &w.embedding}, true
	case "lm_head.weight":
		return role{block: &w.head}, true
	case "model.norm.weight":
		return role{vector: &w.finalNorm}, true
	}
	number, rest, _ := strings.Cut(strings.TrimPrefix(name, "model.layers."), ".")
	index, err := strconv.Atoi(number)
	if err != nil || index < 0 || index >= len(w.layers) {
		return role{}, false
	}
	l := &w.layers[index]
	block, vector := map[string]*container.Block{
		"eh_proj.weight":                        &w.mtp.join,
		"self_attn.q_a_proj.weight":             &l.QueryA,
		"self_attn.q_b_proj.weight":             &l.QueryB,
		"self_attn.kv_a_proj_with_mqa.weight":   &l.KVA,
		"self_attn.kv_b_proj.weight":            &l.KVB,
		"self_attn.k_proj.weight":               &l.Key,
		"self_attn.v_proj.weight":               &l.Value,
		"self_attn.o_proj.weight":               &l.Output,
		"self_attn.indexer.wq_b.weight":         &l.IndexQuery,
		"self_attn.indexer.wk.weight":           &l.IndexKey,
		"self_attn.indexer.weights_proj.weight": &l.IndexScore,
		"mlp.gate_proj.weight":                  &l.Gate,
		"mlp.up_proj.weight":                    &l.Up,
		"mlp.down_proj.weight":                  &l.Down,
		"mlp.shared_experts.gate_proj.weight":   &l.Gate,
		"mlp.shared_experts.up_proj.weight":     &l.Up,
		"mlp.shared_experts.down_proj.weight":   &l.Down,
	}[rest], map[string]*[]float32{
		"enorm.weight":                     &w.mtp.embeddingNorm,
		"hnorm.weight":                     &w.mtp.hiddenNorm,
		"shared_head.norm.weight":          &w.mtp.headNorm,
		"input_layernorm.weight":           &l.InputNorm,
		"post_attention_layernorm.weight":  &l.PostNorm,
		"self_attn.q_a_layernorm.weight":   &l.QueryANorm,
		"self_attn.kv_a_layernorm.weight":  &l.KVANorm,
		"self_attn.q_proj.bias":            &l.QueryBias,
		"self_attn.k_proj.bias":            &l.KeyBias,
		"self_attn.v_proj.bias":            &l.ValueBias,
		"self_attn.q_norm.weight":          &l.QueryNorm,
		"self_attn.k_norm.weight":          &l.KeyNorm,
		"self_attn.indexer.k_norm.weight":  &l.IndexKeyNorm,
		"self_attn.indexer.k_norm.bias":    &l.IndexKeyNormBias,
		"mlp.gate.e_score_correction_bias": &l.RouterBias,
	}[rest]
	return role{block: block, vector: vector}, block != nil || vector != nil
}

// wanted lists the resident weights that a configuration uses, with their roles.
func wanted(c *container.Config, all []container.Weight, into *weights) ([]placed, error) {
	into.layers = make([]compute.LayerWeights, layerCount(c))
	var list []placed
	for _, w := range all {
		if w.Layer >= len(into.layers) || strings.Contains(w.Name, ".indexer.") && c.Attention.Index.Heads == 0 {
			continue
		}
		r, ok := into.roleOf(w.Name)
		switch {
		case strings.HasSuffix(w.Name, ".mlp.gate.weight"):
			r, ok = role{block: &into.layers[w.Layer].Router, router: true}, true
		case strings.HasSuffix(w.Name, ".self_attn.q_proj.weight"):
			// The direct query projection of MLA takes the place of the second of two.
			r, ok = role{block: &into.layers[w.Layer].Query}, true
			if c.Attention.Kind == container.MLA {
				r.block = &into.layers[w.Layer].QueryB
			}
		}
		if !ok {
			return nil, fmt.Errorf("weight %q has no place in this engine; the container reader knows more than it", w.Name)
		}
		list = append(list, placed{weight: w, role: r})
	}
	return list, nil
}

// placed is a weight and the memory it is to be read into.
type placed struct {
	weight container.Weight
	role   role
	memory []byte
}

// asFloats says that the weight is wanted as float32, however it is stored.
func (p *placed) asFloats() bool { return p.role.vector != nil || p.role.router }

// bytes is what the weight takes in memory.
func (p *placed) bytes() int64 {
	if p.asFloats() {
		return 4 * int64(p.weight.Rows) * int64(p.weight.Columns)
	}
	return roundUp(p.weight.Data.Bytes, carveAlignment) + p.weight.Scales.Bytes
}

// load reads the weight and puts it into its role.
func (p *placed) load(source *container.Container) error {
	w := &p.weight
	c := carver{bytes: p.memory}
	if p.asFloats() {
		values, err := source.Floats(w.Name)
		if err != nil {
			return err
		}
		into := c.floats(len(values))
		copy(into, values)
		if p.role.vector != nil {
			*p.role.vector = into
			return nil
		}
		*p.role.block = container.Block{
			Encoding: container.Encoding{Format: container.F32}, Rows: w.Rows, Columns: w.Columns,
			Data: p.memory[:len(values)*4],
		}
		return nil
	}
	data, scales := c.take(w.Data.Bytes), c.floats(int(w.Scales.Bytes/4))
	if err := source.Load(*w, data, scales); err != nil {
		return err
	}
	*p.role.block = container.Block{Encoding: w.Encoding, Rows: w.Rows, Columns: w.Columns, Data: data, Scales: scales}
	return nil
}

// maxMappingBytes keeps mappings below the largest buffer that a Mac with 8 GB accepts.
const maxMappingBytes = 1 << 30

// place is where pack put an item.
type place struct {
	mapping int
	offset  int64
}

// pack distributes items over mappings of maxMappingBytes at most; a larger item gets one of its own.
func pack(sizes []int64, alignment int64) (places []place, mappings []int64) {
	for _, size := range sizes {
		last := len(mappings) - 1
		offset := int64(0)
		if last >= 0 {
			offset = roundUp(mappings[last], alignment)
		}
		if last < 0 || offset+size > maxMappingBytes {
			mappings = append(mappings, 0)
			last, offset = last+1, 0
		}
		places = append(places, place{last, offset})
		mappings[last] = offset + size
	}
	for i := range mappings {
		mappings[i] = roundUp(mappings[i], pageBytes)
	}
	return places, mappings
}

// unsupported counts the weights that a backend has no kernels for, by encoding, as one sentence; "" if there are none.
func unsupported(backend compute.Backend, list []placed, experts map[container.ExpertLayout]int) string {
	counts := map[string]int{}
	see := func(e container.Encoding, n int) {
		if !backend.Supports(e) {
			counts[e.String()] += n
		}
	}
	for i := range list {
		if !list[i].asFloats() {
			see(list[i].weight.Encoding, 1)
		}
	}
	for layout, n := range experts {
		see(layout.Gate.Encoding, n)
		see(layout.Up.Encoding, n)
		see(layout.Down.Encoding, n)
	}
	var parts []string
	for name, n := range counts {
		parts = append(parts, fmt.Sprintf("%d tensors need format %s", n, name))
	}
	slices.Sort(parts)
	if len(parts) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, which %s has no kernels for", strings.Join(parts, ", "), backend.Name())
}

// readers is the number of files read at once while loading: an SSD reaches its bandwidth with a few.
func readers() int { return min(8, max(2, runtime.NumCPU())) }

// inParallel runs work(0) … work(n−1) on a few goroutines and returns the first error; after one, or when ctx is cancelled,
// nothing new is begun.
func inParallel(ctx context.Context, n int, work func(int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wait sync.WaitGroup
	for range min(readers(), n) {
		wait.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := work(i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wait.Wait()
	return context.Cause(ctx)
}
