package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

// Limits of what a config.json may claim: several times the largest model known, small enough that nothing computed from
// them overflows and that the list of tensors they imply stays affordable.
const (
	maxLayers        = 1024
	maxWidth         = 1 << 20 // hidden sizes, ranks, feed-forward widths
	maxHeads         = 4096
	maxHeadDim       = 8192
	maxVocabulary    = 1 << 24
	maxPositions     = 1 << 30
	maxExperts       = 1 << 14
	maxPerToken      = 256
	maxTotalExperts  = 1 << 18
	maxConfigBytes   = 16 << 20
	maxMTPLayers     = 8
	maxEOS           = 64
	latentNormFixed  = 1e-6
	deepseekDefault  = 1e-6
	usualNormEpsilon = 1e-5
)

// families are the values of model_type that are understood.
var families = []string{"glm_moe_dsa", "glm4_moe_lite", "deepseek_v3", "glm4_moe", "qwen3_moe", "olmoe"}

// ParseConfig reads config.json and, where there is one, generation_config.json (nil without). Keys mean what Hugging Face
// transformers takes them to mean for the family; keys that ask for a computation this program does
// not have are refused by name.
func ParseConfig(configJSON, generationJSON []byte) (*Config, error) {
	k, err := newKeys("config.json", configJSON)
	if err != nil {
		return nil, err
	}
	generation := &keys{}
	if generationJSON != nil {
		if generation, err = newKeys("generation_config.json", generationJSON); err != nil {
			return nil, err
		}
	}
	c := &Config{Family: k.text("model_type", "")}
	switch c.Family {
	case "glm_moe_dsa", "glm4_moe_lite", "deepseek_v3":
		k.common(c)
		k.mla(c)
	case "glm4_moe", "qwen3_moe", "olmoe":
		k.common(c)
		k.gqa(c)
	case "":
		return nil, errors.New("config.json has no model_type; use the config.json that belongs to the model")
	default:
		return nil, fmt.Errorf("config.json: models of type %q are not supported; supported are %s", c.Family, strings.Join(families, ", "))
	}
	k.rope(c)
	k.moe(c)
	k.layers(c)
	k.indexer(c)
	k.tokens(c, generation)
	if k.err != nil {
		return nil, fmt.Errorf("config.json: %w; use the config.json that belongs to the model", k.err)
	}
	return c, nil
}

func (c *Config) sigmoidFamily() bool { return c.Family != "qwen3_moe" && c.Family != "olmoe" }

func (k *keys) common(c *Config) {
	c.Layers = k.size("num_hidden_layers", maxLayers)
	c.Hidden = k.size("hidden_size", maxWidth)
	c.Vocabulary = k.size("vocab_size", maxVocabulary)
	c.MaxPositions = k.size("max_position_embeddings", maxPositions)
	c.Attention.Heads = k.size("num_attention_heads", maxHeads)
	epsilon := usualNormEpsilon
	if c.Family == "deepseek_v3" || c.Family == "qwen3_moe" {
		epsilon = deepseekDefault
	}
	c.NormEpsilon = float32(k.number("rms_norm_eps", epsilon, 1e-12, 0.1))
	c.TiedEmbeddings = k.flag("tie_word_embeddings", false)
	if act := k.text("hidden_act", "silu"); act != "silu" {
		k.fail("hidden_act %q is not supported (only silu)", act)
	}
	if k.flag("use_sliding_window", false) {
		k.fail("use_sliding_window is not supported")
	}
	if k.flag("mlp_bias", false) {
		k.fail("mlp_bias is not supported")
	}
	for _, kind := range k.texts("layer_types") {
		if kind != "full_attention" && kind != "deepseek_sparse_attention" {
			k.fail("layer type %q is not supported", kind)
		}
	}
	if c.sigmoidFamily() {
		c.MTPLayers = k.integer("num_nextn_predict_layers", 0, 0, maxMTPLayers)
	}
}

func (k *keys) mla(c *Config) {
	a := &c.Attention
	a.Kind = MLA
	a.KVHeads = a.Heads
	if k.present("q_lora_rank") {
		a.QueryRank = k.size("q_lora_rank", maxWidth)
	}
	a.KVRank = k.size("kv_lora_rank", maxWidth)
	a.NopeDim = k.size("qk_nope_head_dim", maxHeadDim)
	a.ValueDim = k.size("v_head_dim", maxHeadDim)
	a.LatentNormEpsilon = latentNormFixed
	c.RoPE.Dim = k.size("qk_rope_head_dim", maxHeadDim)
	c.RoPE.Interleaved = k.flag("rope_interleave", true)
	if c.Family == "glm_moe_dsa" && !(c.RoPE.Interleaved && k.flag("indexer_rope_interleave", true)) {
		k.fail("rope_interleave and indexer_rope_interleave false are not supported for glm_moe_dsa")
	}
	if k.flag("attention_bias", false) {
		k.fail("attention_bias is not supported for %s", c.Family)
	}
	a.Scale = float32(1 / math.Sqrt(float64(a.NopeDim+c.RoPE.Dim)))
}

func (k *keys) gqa(c *Config) {
	a := &c.Attention
	a.Kind = GQA
	a.KVHeads = a.Heads
	if k.present("num_key_value_heads") {
		a.KVHeads = k.size("num_key_value_heads", maxHeads)
	}
	if k.present("head_dim") {
		a.HeadDim = k.size("head_dim", maxHeadDim)
	} else if a.Heads > 0 {
		a.HeadDim = c.Hidden / a.Heads
		if a.HeadDim*a.Heads != c.Hidden || a.HeadDim > maxHeadDim {
			k.fail("hidden_size %d does not divide into %d heads", c.Hidden, a.Heads)
		}
	}
	if a.KVHeads > 0 && a.Heads%a.KVHeads != 0 {
		k.fail("%d attention heads cannot share %d key-value heads", a.Heads, a.KVHeads)
	}
	a.Bias = k.flag("attention_bias", false)
	switch c.Family {
	case "glm4_moe":
		if k.flag("use_qk_norm", false) {
			a.QKNorm = QKNormHead
		}
	case "qwen3_moe":
		a.QKNorm = QKNormHead
	case "olmoe":
		a.QKNorm = QKNormFull
		if k.present("clip_qkv") {
			a.ClipQKV = float32(k.number("clip_qkv", 0, 1e-6, 1e9))
		}
	}
	if a.Bias && c.Family != "glm4_moe" {
		k.fail("attention_bias is not supported for %s", c.Family)
	}
	if a.HeadDim > 0 {
		a.Scale = float32(1 / math.Sqrt(float64(a.HeadDim)))
	}
}

func (k *keys) moe(c *Config) {
	m := &c.MoE
	for _, name := range []string{"n_routed_experts", "num_local_experts", "num_experts"} {
		if k.present(name) {
			n := k.size(name, maxExperts)
			if m.Experts != 0 && n != m.Experts {
				k.fail("it gives two numbers of experts, %d and %d", m.Experts, n)
			}
			m.Experts = n
		}
	}
	if m.Experts == 0 {
		k.fail("n_routed_experts (or num_experts, num_local_experts) is missing")
	}
	m.PerToken = k.size("num_experts_per_tok", maxPerToken)
	if m.PerToken > m.Experts {
		k.fail("num_experts_per_tok is %d, but there are %d experts", m.PerToken, m.Experts)
	}
	m.Groups, m.TopGroups, m.Scale, m.Scoring = 1, 1, 1, Softmax
	m.Normalise = k.flag("norm_topk_prob", c.sigmoidFamily())
	if c.Family == "olmoe" {
		m.Inner = k.size("intermediate_size", maxWidth)
		return
	}
	m.Inner = k.size("moe_intermediate_size", maxWidth)
	if !c.sigmoidFamily() {
		return
	}
	m.Scoring, m.SelectionBias = Sigmoid, true
	if s := k.text("scoring_func", "sigmoid"); s != "sigmoid" {
		k.fail("scoring_func %q is not supported for %s", s, c.Family)
	}
	if s := k.text("topk_method", "noaux_tc"); s != "noaux_tc" {
		k.fail("topk_method %q is not supported for %s", s, c.Family)
	}
	if k.present("n_shared_experts") {
		m.SharedInner = m.Inner * k.integer("n_shared_experts", 0, 0, 64)
	}
	m.Scale = float32(k.number("routed_scaling_factor", math.NaN(), 1e-6, 1e6))
	if c.Family == "deepseek_v3" || k.present("n_group") {
		m.Groups = k.size("n_group", maxExperts)
		m.TopGroups = k.size("topk_group", maxExperts)
	}
	switch {
	case k.err != nil:
	case m.Experts%m.Groups != 0 || m.Groups > 1 && m.Experts/m.Groups < 2:
		k.fail("%d experts cannot form %d groups", m.Experts, m.Groups)
	case m.TopGroups > m.Groups || m.PerToken > m.Experts/m.Groups*m.TopGroups:
		k.fail("%d of %d groups do not hold %d experts to choose", m.TopGroups, m.Groups, m.PerToken)
	}
}

// layers decides which layers have routed experts.
func (k *keys) layers(c *Config) {
	if k.err != nil {
		return
	}
	c.Sparse = make([]bool, c.Layers+c.MTPLayers)
	if kinds := k.texts("mlp_layer_types"); kinds != nil {
		if len(kinds) < c.Layers {
			k.fail("mlp_layer_types has %d entries for %d layers", len(kinds), c.Layers)
			return
		}
		for i, kind := range kinds[:c.Layers] {
			if kind != "dense" && kind != "sparse" {
				k.fail("mlp_layer_types names %q", kind)
			}
			c.Sparse[i] = kind == "sparse"
		}
	} else if c.sigmoidFamily() {
		if k.integer("moe_layer_freq", 1, 1, maxLayers) != 1 {
			k.fail("moe_layer_freq other than 1 is not supported")
		}
		first := map[string]int{"glm_moe_dsa": 3, "deepseek_v3": 3, "glm4_moe": 1, "glm4_moe_lite": 1}[c.Family]
		first = k.integer("first_k_dense_replace", first, 0, maxLayers)
		for i := range c.Layers {
			c.Sparse[i] = i >= first
		}
	} else {
		step := k.integer("decoder_sparse_step", 1, 1, maxLayers)
		dense := k.integers("mlp_only_layers")
		for i := range c.Layers {
			c.Sparse[i] = c.Family == "olmoe" || (i+1)%step == 0 && !slices.Contains(dense, i)
		}
	}
	for i := c.Layers; i < len(c.Sparse); i++ {
		c.Sparse[i] = true
	}
	if slices.Contains(c.Sparse[:c.Layers], false) {
		c.DenseInner = k.size("intermediate_size", maxWidth)
	}
	if n := len(c.Sparse) * c.MoE.Experts; n > maxTotalExperts {
		k.fail("%d layers of %d experts are more than the %d supported", len(c.Sparse), c.MoE.Experts, maxTotalExperts)
	}
}

// indexer reads the sparse attention of glm_moe_dsa: which layers choose positions themselves.
func (k *keys) indexer(c *Config) {
	if c.Family != "glm_moe_dsa" || k.err != nil {
		return
	}
	x := &c.Attention.Index
	x.Heads = k.size("index_n_heads", maxHeads)
	x.HeadDim = k.size("index_head_dim", maxHeadDim)
	x.TopK = k.size("index_topk", maxPositions)
	x.Full = make([]bool, c.Layers+c.MTPLayers)
	kinds := k.texts("indexer_types")
	if kinds == nil {
		kinds = k.pattern("index_topk_pattern")
	}
	if kinds != nil {
		if len(kinds) < c.Layers {
			k.fail("the indexer types have %d entries for %d layers", len(kinds), c.Layers)
			return
		}
		for i, kind := range kinds[:c.Layers] {
			if kind != "full" && kind != "shared" {
				k.fail("indexer type %q is not supported", kind)
			}
			x.Full[i] = kind == "full"
		}
	} else {
		frequency := k.integer("index_topk_freq", 1, 1, maxLayers)
		offset := k.integer("index_skip_topk_offset", 2, 0, maxLayers)
		for i := range c.Layers {
			x.Full[i] = max(0, i-offset+1)%frequency == 0
		}
	}
	if k.err == nil && !x.Full[0] {
		k.fail("its first layer reuses a selection that no layer before it made")
	}
	if k.err == nil && (x.HeadDim < c.RoPE.Dim || c.Attention.QueryRank == 0) {
		k.fail("the indexer needs q_lora_rank and an index_head_dim of at least qk_rope_head_dim")
	}
}

func (k *keys) tokens(c *Config, generation *keys) {
	c.BOS = -1
	if k.present("bos_token_id") {
		c.BOS = k.integer("bos_token_id", -1, 0, maxVocabulary)
	}
	c.EOS = append(k.integers("eos_token_id"), generation.integers("eos_token_id")...)
	if generation.err != nil {
		k.fail("generation_config.json: %w", generation.err)
	}
	slices.Sort(c.EOS)
	c.EOS = slices.Compact(c.EOS)
	if len(c.EOS) > maxEOS {
		k.fail("%d stop tokens are more than the %d supported", len(c.EOS), maxEOS)
	}
	for _, id := range c.EOS {
		if k.err == nil && (id < 0 || id >= c.Vocabulary) {
			k.fail("eos_token_id %d is outside the vocabulary of %d", id, c.Vocabulary)
		}
	}
}

// keys reads values out of a JSON object; the first failure is kept in err and later reads return zero values, so
// that a family's code is a list of keys.
type keys struct {
	values map[string]json.RawMessage
	err    error
}

func newKeys(file string, text []byte) (*keys, error) {
	if err := lfsStub(file, text); err != nil {
		return nil, err
	}
	k := &keys{}
	if len(text) > maxConfigBytes {
		return nil, fmt.Errorf("%s has %d bytes, which no configuration needs; download it again", file, len(text))
	}
	if err := json.Unmarshal(text, &k.values); err != nil {
		return nil, fmt.Errorf("%s is not a JSON object (%w); download it again", file, err)
	}
	return k, nil
}

func (k *keys) fail(format string, args ...any) {
	if k.err == nil {
		k.err = fmt.Errorf(format, args...)
	}
}

// present is false for null too, as transformers has it.
func (k *keys) present(name string) bool {
	v, ok := k.values[name]
	return ok && !bytes.Equal(v, []byte("null"))
}

func (k *keys) decode(name string, into any, what string) bool {
	if !k.present(name) {
		return false
	}
	if err := json.Unmarshal(k.values[name], into); err != nil {
		k.fail("%s is not %s", name, what)
		return false
	}
	return true
}

// size is a whole number from 1 to limit that must be there.
func (k *keys) size(name string, limit int) int {
	if !k.present(name) {
		k.fail("%s is missing", name)
		return 0
	}
	return k.integer(name, 0, 1, limit)
}

func (k *keys) integer(name string, absent, low, high int) int {
	n := k.number(name, float64(absent), float64(low), float64(high))
	if n != math.Trunc(n) {
		k.fail("%s is %v, not a whole number", name, n)
		return low
	}
	return int(n)
}

// number is a number within limits; absent stands for a missing key, NaN there means that the key must be present.
func (k *keys) number(name string, absent, low, high float64) float64 {
	n := absent
	if !k.decode(name, &n, "a number") {
		if math.IsNaN(absent) {
			k.fail("%s is missing", name)
			return low
		}
		return absent
	}
	if !(n >= low && n <= high) {
		k.fail("%s is %v, outside %v to %v", name, n, low, high)
		return low
	}
	return n
}

func (k *keys) flag(name string, absent bool) bool {
	b := absent
	k.decode(name, &b, "true or false")
	return b
}

func (k *keys) text(name, absent string) string {
	s := absent
	k.decode(name, &s, "a text")
	return s
}

func (k *keys) texts(name string) []string {
	var list []string
	k.decode(name, &list, "a list of texts")
	return list
}

// integers reads a whole number or a list of them.
func (k *keys) integers(name string) []int {
	if !k.present(name) {
		return nil
	}
	var one int
	if json.Unmarshal(k.values[name], &one) == nil {
		return []int{one}
	}
	var list []int
	k.decode(name, &list, "a whole number or a list of them")
	return list
}

// pattern reads "FSSF" or a list of names as indexer types.
func (k *keys) pattern(name string) []string {
	var letters string
	if !k.present(name) || json.Unmarshal(k.values[name], &letters) != nil {
		return k.texts(name)
	}
	list := make([]string, len(letters))
	for i, letter := range letters {
		list[i] = map[rune]string{'F': "full", 'S': "shared"}[letter]
	}
	return list
}
