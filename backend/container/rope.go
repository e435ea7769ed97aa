package container

import (
	"encoding/json"
	"math"
)

// rope reads the rotary embedding: from rope_parameters, or from the older rope_theta and rope_scaling. YaRN's arithmetic
// is that of transformers (modeling_rope_utils), where the frequencies are interpolated once and
// mscale enters twice: into cos and sin, and for MLA into the attention's scale.
func (k *keys) rope(c *Config) {
	p := &keys{values: map[string]json.RawMessage{}}
	name := "rope_parameters"
	if !k.decode(name, &p.values, "an object") {
		name = "rope_scaling"
		k.decode(name, &p.values, "an object")
	}
	theta := p.number("rope_theta", k.number("rope_theta", 10000, 2, 1e15), 2, 1e15)
	c.ropeDimension(k, p)
	kind := p.text("rope_type", p.text("type", "default"))
	if k.err != nil || p.err != nil {
		k.fail("%s: %w", name, p.err)
		return
	}
	dim := c.RoPE.Dim
	if dim < 2 || dim%2 != 0 {
		k.fail("%d rotated dimensions are not pairs", dim)
		return
	}
	c.RoPE.Magnitude = 1
	frequencies := make([]float64, dim/2)
	for j := range frequencies {
		frequencies[j] = math.Pow(theta, -2*float64(j)/float64(dim))
	}
	c.RoPE.InverseFrequencies = frequencies
	switch kind {
	case "default":
	case "yarn":
		p.yarn(c, theta)
		if p.err != nil {
			k.fail("%s: %w", name, p.err)
		}
	default:
		k.fail("%s of type %q is not supported (only default and yarn)", name, kind)
	}
}

// ropeDimension settles how many dimensions of a GQA head are rotated; MLA names them itself.
func (c *Config) ropeDimension(k, p *keys) {
	if c.Attention.Kind != GQA {
		return
	}
	usual := 1.0
	if c.Family == "glm4_moe" {
		usual = 0.5
	}
	part := p.number("partial_rotary_factor", k.number("partial_rotary_factor", usual, 0, 1), 0, 1)
	c.RoPE.Dim = int(float64(c.Attention.HeadDim) * part)
}

func (k *keys) yarn(c *Config, theta float64) {
	factor := k.number("factor", math.NaN(), 1, 1e6)
	original := float64(k.size("original_max_position_embeddings", maxPositions))
	fast := k.number("beta_fast", 32, 1e-3, 1e6)
	slow := k.number("beta_slow", 1, 1e-3, 1e6)
	mscale := k.number("mscale", 0, 0, 100)
	mscaleAll := k.number("mscale_all_dim", 0, 0, 100)
	truncate := k.flag("truncate", true)
	magnitude := func(m float64) float64 {
		if factor <= 1 {
			return 1
		}
		return 0.1*m*math.Log(factor) + 1
	}
	attention := magnitude(1)
	if mscale != 0 && mscaleAll != 0 {
		attention = magnitude(mscale) / magnitude(mscaleAll)
	}
	c.RoPE.Magnitude = float32(k.number("attention_factor", attention, 1e-3, 1e3))
	if c.Attention.Kind == MLA && mscaleAll != 0 {
		m := magnitude(mscaleAll)
		c.Attention.Scale = float32(float64(c.Attention.Scale) * m * m)
	}
	if k.err != nil {
		return
	}
	// The pair that turns n times over the original context; pairs that turn more often than fast are kept, those that turn
	// less often than slow are interpolated, and a ramp joins the two.
	dim := float64(c.RoPE.Dim)
	pair := func(turns float64) float64 {
		return dim * math.Log(original/(turns*2*math.Pi)) / (2 * math.Log(theta))
	}
	low, high := pair(fast), pair(slow)
	if truncate {
		low, high = math.Floor(low), math.Ceil(high)
	}
	low, high = max(low, 0), min(high, dim-1)
	if low == high {
		high += 0.001
	}
	for j, f := range c.RoPE.InverseFrequencies {
		ramp := min(max((float64(j)-low)/(high-low), 0), 1)
		c.RoPE.InverseFrequencies[j] = f/factor*ramp + f*(1-ramp)
	}
}
