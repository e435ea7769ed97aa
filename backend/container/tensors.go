package container

import "fmt"

// Class is the kind of tensor that formats are chosen and reported by.
type Class uint8

const (
	// Unquantised tensors are norms, biases, the router and the indexer's head weights: small, and sensitive.
	Unquantised Class = iota
	// Embeddings are the token table and the output head.
	Embeddings
	// AttentionWeights include the indexer's projections.
	AttentionWeights
	// DenseMLP are the feed-forward weights of layers without experts.
	DenseMLP
	// SharedExperts run for every token.
	SharedExperts
	// RoutedExperts are read from the disk as the router asks for them.
	RoutedExperts
	// MTPHead is everything of the multi-token-prediction layers that is quantised, their experts included.
	MTPHead
)

var classNames = [...]string{"norms and routers", "embeddings", "attention", "dense layers", "shared experts", "experts", "MTP"}

func (c Class) String() string { return classNames[c] }

// tensorSpec is a tensor that a model of some Config must have. Vectors have one row.
type tensorSpec struct {
	name          string
	rows, columns int
	vector        bool
	class         Class
	layer         int  // −1 outside the layers
	floats        bool // must be stored as F32, BF16 or F16
}

func (s *tensorSpec) String() string {
	if s.vector {
		return fmt.Sprintf("[%d]", s.columns)
	}
	return fmt.Sprintf("[%d, %d]", s.rows, s.columns)
}

// The parts of an expert, in the order of its record.
var expertParts = [3]string{"gate_proj", "up_proj", "down_proj"}

func layerPrefix(layer int) string { return fmt.Sprintf("model.layers.%d.", layer) }

// expertPrefix names an expert; our records are tensors of exactly this name.
func expertPrefix(layer, expert int) string {
	return fmt.Sprintf("model.layers.%d.mlp.experts.%d", layer, expert)
}

// expertShape gives rows and columns of an expert's part.
func (c *Config) expertShape(part int) (rows, columns int) {
	if part == 2 {
		return c.Hidden, c.MoE.Inner
	}
	return c.MoE.Inner, c.Hidden
}

// resident calls yield with every tensor the model must have, experts apart, in a fixed order: the order of use.
func (c *Config) resident(yield func(tensorSpec)) {
	global := func(name string, rows, columns int, class Class) {
		yield(tensorSpec{name: name, rows: rows, columns: columns, class: class, layer: -1})
	}
	global("model.embed_tokens.weight", c.Vocabulary, c.Hidden, Embeddings)
	for layer := range c.Layers + c.MTPLayers {
		c.layerTensors(layer, yield)
	}
	yield(tensorSpec{name: "model.norm.weight", rows: 1, columns: c.Hidden, vector: true, layer: -1, floats: true})
	if !c.TiedEmbeddings {
		global("lm_head.weight", c.Vocabulary, c.Hidden, Embeddings)
	}
}

func (c *Config) layerTensors(layer int, yield func(tensorSpec)) {
	prefix, mtp := layerPrefix(layer), layer >= c.Layers
	matrix := func(name string, rows, columns int, class Class) {
		if mtp && class != Unquantised {
			class = MTPHead
		}
		yield(tensorSpec{name: prefix + name, rows: rows, columns: columns, class: class, layer: layer})
	}
	vector := func(name string, n int) {
		yield(tensorSpec{name: prefix + name, rows: 1, columns: n, vector: true, layer: layer, floats: true})
	}
	a := &c.Attention
	if mtp {
		vector("enorm.weight", c.Hidden)
		vector("hnorm.weight", c.Hidden)
		matrix("eh_proj.weight", c.Hidden, 2*c.Hidden, MTPHead)
	}
	vector("input_layernorm.weight", c.Hidden)
	if a.Kind == MLA {
		c.mlaTensors(layer, matrix, vector)
	} else {
		queries, keys := a.Heads*a.HeadDim, a.KVHeads*a.HeadDim
		matrix("self_attn.q_proj.weight", queries, c.Hidden, AttentionWeights)
		matrix("self_attn.k_proj.weight", keys, c.Hidden, AttentionWeights)
		matrix("self_attn.v_proj.weight", keys, c.Hidden, AttentionWeights)
		if a.Bias {
			vector("self_attn.q_proj.bias", queries)
			vector("self_attn.k_proj.bias", keys)
			vector("self_attn.v_proj.bias", keys)
		}
		switch a.QKNorm {
		case QKNormHead:
			vector("self_attn.q_norm.weight", a.HeadDim)
			vector("self_attn.k_norm.weight", a.HeadDim)
		case QKNormFull:
			vector("self_attn.q_norm.weight", queries)
			vector("self_attn.k_norm.weight", keys)
		}
		matrix("self_attn.o_proj.weight", c.Hidden, queries, AttentionWeights)
	}
	vector("post_attention_layernorm.weight", c.Hidden)
	mlp := func(name string, inner int, class Class) {
		matrix(name+"gate_proj.weight", inner, c.Hidden, class)
		matrix(name+"up_proj.weight", inner, c.Hidden, class)
		matrix(name+"down_proj.weight", c.Hidden, inner, class)
	}
	if c.Sparse[layer] {
		yield(tensorSpec{name: prefix + "mlp.gate.weight", rows: c.MoE.Experts, columns: c.Hidden, layer: layer, floats: true})
		if c.MoE.SelectionBias {
			vector("mlp.gate.e_score_correction_bias", c.MoE.Experts)
		}
		if c.MoE.SharedInner > 0 {
			mlp("mlp.shared_experts.", c.MoE.SharedInner, SharedExperts)
		}
	} else {
		mlp("mlp.", c.DenseInner, DenseMLP)
	}
	if mtp {
		vector("shared_head.norm.weight", c.Hidden)
	}
}

func (c *Config) mlaTensors(layer int, matrix func(string, int, int, Class), vector func(string, int)) {
	a := &c.Attention
	queries := a.Heads * (a.NopeDim + c.RoPE.Dim)
	if a.QueryRank > 0 {
		matrix("self_attn.q_a_proj.weight", a.QueryRank, c.Hidden, AttentionWeights)
		vector("self_attn.q_a_layernorm.weight", a.QueryRank)
		matrix("self_attn.q_b_proj.weight", queries, a.QueryRank, AttentionWeights)
	} else {
		matrix("self_attn.q_proj.weight", queries, c.Hidden, AttentionWeights)
	}
	matrix("self_attn.kv_a_proj_with_mqa.weight", a.KVRank+c.RoPE.Dim, c.Hidden, AttentionWeights)
	vector("self_attn.kv_a_layernorm.weight", a.KVRank)
	matrix("self_attn.kv_b_proj.weight", a.Heads*(a.NopeDim+a.ValueDim), a.KVRank, AttentionWeights)
	matrix("self_attn.o_proj.weight", c.Hidden, a.Heads*a.ValueDim, AttentionWeights)
	if x := &a.Index; x.Heads > 0 && x.Full[layer] {
		matrix("self_attn.indexer.wq_b.weight", x.Heads*x.HeadDim, a.QueryRank, AttentionWeights)
		matrix("self_attn.indexer.wk.weight", x.HeadDim, c.Hidden, AttentionWeights)
		matrix("self_attn.indexer.weights_proj.weight", x.Heads, c.Hidden, Unquantised)
		vector("self_attn.indexer.k_norm.weight", x.HeadDim)
		vector("self_attn.indexer.k_norm.bias", x.HeadDim)
	}
}

// expertClass is the class of a layer's routed experts.
func (c *Config) expertClass(layer int) Class {
	if layer >= c.Layers {
		return MTPHead
	}
	return RoutedExperts
}
