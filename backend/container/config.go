package container

// Config is what config.json says of a model, with the families' spellings removed: the engine builds its one forward
// pass from it, the reader derives from it which tensors must exist and how large they are. Every field is checked
// against a range when it is read; code that receives a Config may allocate by it.
type Config struct {
	Family         string // config.json's model_type: glm_moe_dsa, glm4_moe_lite, deepseek_v3, glm4_moe, qwen3_moe, olmoe
	Layers         int    // main layers; layer Layers is the first multi-token-prediction layer, if any
	MTPLayers      int    // multi-token-prediction layers in the file (0 when config.json promises them and the file has none)
	Hidden         int
	Vocabulary     int
	MaxPositions   int
	NormEpsilon    float32
	TiedEmbeddings bool
	Attention      Attention
	RoPE           RoPE
	DenseInner     int    // width of the dense feed-forward layers (0 without any)
	Sparse         []bool // [Layers+MTPLayers]: this layer has routed experts
	MoE            MoE
	EOS            []int // union of config.json and generation_config.json
	BOS            int   // −1 without one
}

// AttentionKind tells the two attention mechanisms apart.
type AttentionKind uint8

const (
	// MLA is multi-head latent attention: keys and values are expanded from one cached latent per position.
	MLA AttentionKind = iota + 1
	// GQA is grouped-query attention, plain multi-head attention included (KVHeads == Heads).
	GQA
)

// QKNorm says whether and over what queries and keys are normalised before RoPE (GQA only).
type QKNorm uint8

const (
	NoQKNorm QKNorm = iota
	// QKNormHead: RMS norm over each head's dimensions, one weight vector of HeadDim for all heads.
	QKNormHead
	// QKNormFull: RMS norm over the whole projection (OLMoE).
	QKNormFull
)

// Attention holds the sizes of the attention of every layer.
type Attention struct {
	Kind  AttentionKind
	Heads int
	Scale float32 // multiplies q·k; YaRN's square of mscale included

	// GQA
	KVHeads, HeadDim int
	QKNorm           QKNorm
	Bias             bool    // q, k and v projections have biases
	ClipQKV          float32 // 0: off

	// MLA
	QueryRank int // 0: one direct q_proj instead of q_a and q_b
	KVRank    int
	NopeDim   int // per head, not rotated
	ValueDim  int // per head
	// LatentNormEpsilon belongs to the norms of the query and key-value latents (q_a_layernorm, kv_a_layernorm): the
	// reference implementation leaves it at 1e-6 whatever rms_norm_eps says.
	LatentNormEpsilon float32

	Index Indexer
}

// Indexer is the DSA lightning indexer; Heads is 0 in models without one.
type Indexer struct {
	Heads, HeadDim, TopK int
	Full                 []bool // [Layers+MTPLayers]: computes its own selection; false: reuses the last full layer's.
	// For a multi-token-prediction layer Full says whether the file holds an indexer for it.
}

// RoPE describes the rotary embedding. InverseFrequencies[j] turns pair j by position·f; YaRN's interpolation is already in them.
type RoPE struct {
	Dim                int  // rotated dimensions per head
	Interleaved        bool // pairs are (2j, 2j+1); false: (j, j+Dim/2)
	InverseFrequencies []float64
	Magnitude          float32 // multiplies cos and sin (YaRN's attention factor); 1 otherwise
}

// Scoring turns router logits into scores.
type Scoring uint8

const (
	Softmax Scoring = iota + 1
	Sigmoid
)

// MoE holds the routed part of the feed-forward layers.
type MoE struct {
	Experts, PerToken int
	Inner             int // width of one routed expert
	SharedInner       int // width of all shared experts together, 0 without
	Scoring           Scoring
	SelectionBias     bool // e_score_correction_bias is added for choosing, not for weighting
	Groups, TopGroups int  // group-limited routing: experts are in Groups equal groups, TopGroups of them may be chosen from; 1, 1: off
	Normalise         bool // chosen weights are divided by their sum + 1e-20
	Scale             float32
}
