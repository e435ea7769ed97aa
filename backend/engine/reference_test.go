package engine

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"testing"
)

// An independent forward pass: float64, one token at a time, every key and value expanded, straight from the tensors' names and
// config.json's fields. It shares no code with the engine, the container reader or the backends. It is itself checked
// against the transformers outputs in testdata/oracles, and then serves for sizes those do not cover.

type tensor struct {
	shape []int
	data  []float64
}

// readTensors reads a safetensors file of F32, BF16 and I64 tensors.
func readTensors(t testing.TB, path string) map[string]tensor {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	headerBytes := binary.LittleEndian.Uint64(file)
	var header map[string]struct {
		Dtype   string `json:"dtype"`
		Shape   []int  `json:"shape"`
		Offsets []int  `json:"data_offsets"`
	}
	raw := map[string]json.RawMessage{}
	if err := json.Unmarshal(file[8:8+headerBytes], &raw); err != nil {
		t.Fatal(err)
	}
	delete(raw, "__metadata__")
	rest, _ := json.Marshal(raw)
	if err := json.Unmarshal(rest, &header); err != nil {
		t.Fatal(err)
	}
	tensors := map[string]tensor{}
	for name, h := range header {
		b := file[8+int(headerBytes)+h.Offsets[0] : 8+int(headerBytes)+h.Offsets[1]]
		var data []float64
		switch h.Dtype {
		case "F32":
			for i := 0; i < len(b); i += 4 {
				data = append(data, float64(math.Float32frombits(binary.LittleEndian.Uint32(b[i:]))))
			}
		case "BF16":
			for i := 0; i < len(b); i += 2 {
				data = append(data, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b[i:]))<<16)))
			}
		case "I64":
			for i := 0; i < len(b); i += 8 {
				data = append(data, float64(int64(binary.LittleEndian.Uint64(b[i:]))))
			}
		default:
			t.Fatalf("%s: dtype %s", name, h.Dtype)
		}
		tensors[name] = tensor{h.Shape, data}
	}
	return tensors
}

// refModel is a checkpoint as the reference sees it.
type refModel struct {
	config     map[string]any
	tensors    map[string]tensor
	torchBatch int // above 0: break ties of the indexer as torch does in a batch of this many tokens, or of those so far if they are more
}

func loadReference(t testing.TB, dir string) *refModel {
	t.Helper()
	return &refModel{tensors: readTensors(t, filepath.Join(dir, "model.safetensors")), config: readConfig(t, dir)}
}

func readConfig(t testing.TB, dir string) (config map[string]any) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &config); err != nil {
		t.Fatal(err)
	}
	return config
}

func (m *refModel) number(key string, fallback float64) float64 {
	if v, ok := m.config[key].(float64); ok {
		return v
	}
	return fallback
}
func (m *refModel) int(key string) int { return int(m.number(key, 0)) }
func (m *refModel) flag(key string) bool {
	v, _ := m.config[key].(bool)
	return v
}
func (m *refModel) family() string { return m.config["model_type"].(string) }

// matvec multiplies the named weight [O, I] with x.
func (m *refModel) matvec(name string, x []float64) []float64 {
	w, ok := m.tensors[name]
	if !ok {
		panic("no tensor " + name)
	}
	rows, columns := w.shape[0], w.shape[1]
	if columns != len(x) {
		panic(fmt.Sprintf("%s has %d columns for %d inputs", name, columns, len(x)))
	}
	y := make([]float64, rows)
	for r := range y {
		for c, v := range x {
			y[r] += w.data[r*columns+c] * v
		}
	}
	if b, ok := m.tensors[strings.TrimSuffix(name, "weight")+"bias"]; ok {
		for r := range y {
			y[r] += b.data[r]
		}
	}
	return y
}

func (m *refModel) rms(name string, x []float64) []float64 {
	sum := 0.0
	for _, v := range x {
		sum += v * v
	}
	f := 1 / math.Sqrt(sum/float64(len(x))+m.number("rms_norm_eps", 1e-5))
	y := make([]float64, len(x))
	for i := range x {
		y[i] = x[i] * f * m.tensors[name].data[i]
	}
	return y
}

// rotation gives angles and magnitude for dim rotated dimensions.
func (m *refModel) rotation(position, dim int) (angles []float64, magnitude float64) {
	p := m.config["rope_parameters"].(map[string]any)
	theta := p["rope_theta"].(float64)
	magnitude = 1
	for j := range dim / 2 {
		frequency := math.Pow(theta, -2*float64(j)/float64(dim))
		if p["rope_type"] == "yarn" {
			factor, original := p["factor"].(float64), p["original_max_position_embeddings"].(float64)
			edge := func(rotations float64) float64 {
				return float64(dim) * math.Log(original/(rotations*2*math.Pi)) / (2 * math.Log(theta))
			}
			low, high := math.Max(math.Floor(edge(p["beta_fast"].(float64))), 0), math.Min(math.Ceil(edge(p["beta_slow"].(float64))), float64(dim-1))
			ramp := math.Min(math.Max((float64(j)-low)/(high-low), 0), 1)
			frequency = frequency/factor*ramp + frequency*(1-ramp)
			scale := func(m float64) float64 { return 0.1*m*math.Log(factor) + 1 }
			magnitude = scale(p["mscale"].(float64)) / scale(p["mscale_all_dim"].(float64))
		}
		angles = append(angles, float64(position)*frequency)
	}
	return angles, magnitude
}

// rotate turns the first dim values of x in place.
func (m *refModel) rotate(x []float64, position, dim int, interleaved bool) {
	angles, magnitude := m.rotation(position, dim)
	out := append([]float64(nil), x[:dim]...)
	for j, a := range angles {
		p, q := j, j+dim/2
		if interleaved {
			p, q = 2*j, 2*j+1
		}
		sin, cos := math.Sin(a)*magnitude, math.Cos(a)*magnitude
		out[p], out[q] = x[p]*cos-x[q]*sin, x[q]*cos+x[p]*sin
	}
	copy(x, out)
}

func (m *refModel) swiglu(prefix string, x []float64) []float64 {
	g, u := m.matvec(prefix+"gate_proj.weight", x), m.matvec(prefix+"up_proj.weight", x)
	for i := range g {
		g[i] = g[i] / (1 + math.Exp(-g[i])) * u[i]
	}
	return m.matvec(prefix+"down_proj.weight", g)
}

func dot(a, b []float64) float64 {
	s := 0.0
	for i := range a {
		s += a[i] * b[i]
	}
	return s
}

// attend is softmax attention of one head over the listed positions.
func attend(q []float64, scale float64, positions []int, key, value func(int) []float64) []float64 {
	scores := make([]float64, len(positions))
	top := math.Inf(-1)
	for i, p := range positions {
		scores[i] = dot(q, key(p)) * scale
		top = math.Max(top, scores[i])
	}
	total := 0.0
	for i := range scores {
		scores[i] = math.Exp(scores[i] - top)
		total += scores[i]
	}
	var out []float64
	for i, p := range positions {
		v := value(p)
		if out == nil {
			out = make([]float64, len(v))
		}
		for j := range v {
			out[j] += scores[i] / total * v[j]
		}
	}
	return out
}

func add(x, y []float64) {
	for i := range x {
		x[i] += y[i]
	}
}

// refResult holds what the reference computed for every position.
type refResult struct {
	logits [][]float64
	hidden [][][]float64 // [layer][position]: input of the layer; after the last layer: the final norm
	routes []map[int][]int
}

type refCache struct{ keys, values, index [][]float64 }

// refState is a sequence under way.
type refState struct {
	caches   []refCache
	position int
}

// step computes one token; result may be nil.
func (m *refModel) step(state *refState, id int32, result *refResult) []float64 {
	layers, d := m.int("num_hidden_layers"), m.int("hidden_size")
	if state.caches == nil {
		state.caches = make([]refCache, layers)
	}
	x := append([]float64(nil), m.tensors["model.embed_tokens.weight"].data[int(id)*d:][:d]...)
	route := map[int][]int{}
	var selected []int
	for l := range layers {
		if result != nil {
			result.hidden[l] = append(result.hidden[l], append([]float64(nil), x...))
		}
		selected = m.layer(fmt.Sprintf("model.layers.%d.", l), l, x, state.position, &state.caches[l], selected, route)
	}
	state.position++
	h := m.rms("model.norm.weight", x)
	head := "lm_head.weight"
	if m.flag("tie_word_embeddings") {
		head = "model.embed_tokens.weight"
	}
	logits := m.matvec(head, h)
	if result != nil {
		result.hidden[layers] = append(result.hidden[layers], h)
		result.logits = append(result.logits, logits)
		result.routes = append(result.routes, route)
	}
	return logits
}

func (m *refModel) forward(ids []int32) *refResult {
	result := &refResult{hidden: make([][][]float64, m.int("num_hidden_layers")+1)}
	var state refState
	for _, id := range ids {
		m.step(&state, id, result)
	}
	return result
}

func (m *refModel) layer(prefix string, l int, x []float64, position int, cache *refCache, selected []int, route map[int][]int) []int {
	normed := m.rms(prefix+"input_layernorm.weight", x)
	var attention []float64
	if m.int("kv_lora_rank") > 0 {
		attention, selected = m.mla(prefix+"self_attn.", normed, position, cache, selected)
	} else {
		attention = m.gqa(prefix+"self_attn.", normed, position, cache)
	}
	add(x, attention)
	normed = m.rms(prefix+"post_attention_layernorm.weight", x)
	if _, sparse := m.tensors[prefix+"mlp.gate.weight"]; !sparse {
		add(x, m.swiglu(prefix+"mlp.", normed))
		return selected
	}
	ids, gates := m.router(prefix+"mlp.gate.", normed)
	route[l] = ids
	out := make([]float64, len(x))
	for i, e := range ids {
		y := m.swiglu(fmt.Sprintf("%smlp.experts.%d.", prefix, e), normed)
		for j := range y {
			out[j] += gates[i] * y[j]
		}
	}
	if _, shared := m.tensors[prefix+"mlp.shared_experts.gate_proj.weight"]; shared {
		add(out, m.swiglu(prefix+"mlp.shared_experts.", normed))
	}
	add(x, out)
	return selected
}

// router gives the chosen experts in ascending order with their gates.
func (m *refModel) router(prefix string, x []float64) ([]int, []float64) {
	logits := m.matvec(prefix+"weight", x)
	n := len(logits)
	scores, choice := make([]float64, n), make([]float64, n)
	bias, sigmoid := m.tensors[prefix+"e_score_correction_bias"]
	total := 0.0
	for i, v := range logits {
		scores[i] = math.Exp(v)
		if sigmoid {
			scores[i] = 1 / (1 + math.Exp(-v))
		}
		total += scores[i]
	}
	for i := range scores {
		if !sigmoid {
			scores[i] /= total
		}
		choice[i] = scores[i]
		if sigmoid {
			choice[i] += bias.data[i]
		}
	}
	best := func(values []float64, k int) []int {
		order := make([]int, len(values))
		for i := range order {
			order[i] = i
		}
		sort.SliceStable(order, func(a, b int) bool { return values[order[a]] > values[order[b]] })
		order = order[:k]
		sort.Ints(order)
		return order
	}
	if groups := m.int("n_group"); groups > 1 {
		size := n / groups
		value := make([]float64, groups)
		for g := range value {
			part := choice[g*size:][:size]
			for _, i := range best(part, 2) {
				value[g] += part[i]
			}
		}
		allowed := map[int]bool{}
		for _, g := range best(value, m.int("topk_group")) {
			allowed[g] = true
		}
		for i := range choice {
			if !allowed[i/size] {
				choice[i] = math.Inf(-1)
			}
		}
	}
	ids := best(choice, m.int("num_experts_per_tok"))
	gates, sum := make([]float64, len(ids)), 0.0
	for i, e := range ids {
		gates[i] = scores[e]
		sum += scores[e]
	}
	for i := range gates {
		if m.flag("norm_topk_prob") {
			gates[i] /= sum + 1e-20
		}
		gates[i] *= m.number("routed_scaling_factor", 1)
	}
	return ids, gates
}

func upTo(position int) []int {
	all := make([]int, position+1)
	for i := range all {
		all[i] = i
	}
	return all
}

func (m *refModel) mla(prefix string, x []float64, position int, cache *refCache, selected []int) ([]float64, []int) {
	heads, nope, rope := m.int("num_attention_heads"), m.int("qk_nope_head_dim"), m.int("qk_rope_head_dim")
	value, rank := m.int("v_head_dim"), m.int("kv_lora_rank")
	latentQuery := x
	var q []float64
	if m.int("q_lora_rank") > 0 {
		latentQuery = m.rms(prefix+"q_a_layernorm.weight", m.matvec(prefix+"q_a_proj.weight", x))
		q = m.matvec(prefix+"q_b_proj.weight", latentQuery)
	} else {
		q = m.matvec(prefix+"q_proj.weight", x)
	}
	compressed := m.matvec(prefix+"kv_a_proj_with_mqa.weight", x)
	shared := compressed[rank:]
	m.rotate(shared, position, rope, true)
	expanded := m.matvec(prefix+"kv_b_proj.weight", m.rms(prefix+"kv_a_layernorm.weight", compressed[:rank]))
	var keys, values []float64
	for h := range heads {
		part := expanded[h*(nope+value):][:nope+value]
		keys = append(append(keys, part[:nope]...), shared...)
		values = append(values, part[nope:]...)
	}
	cache.keys, cache.values = append(cache.keys, keys), append(cache.values, values)

	positions := upTo(position)
	if _, full := m.tensors[prefix+"indexer.wk.weight"]; full {
		selected = m.index(prefix+"indexer.", x, latentQuery, position, cache)
	}
	if selected != nil {
		positions = selected
	}
	scale := 1 / math.Sqrt(float64(nope+rope))
	if p := m.config["rope_parameters"].(map[string]any); p["rope_type"] == "yarn" {
		s := 0.1*p["mscale_all_dim"].(float64)*math.Log(p["factor"].(float64)) + 1
		scale *= s * s
	}
	var out []float64
	for h := range heads {
		query := q[h*(nope+rope):][:nope+rope]
		m.rotate(query[nope:], position, rope, true)
		out = append(out, attend(query, scale, positions,
			func(p int) []float64 { return cache.keys[p][h*(nope+rope):][:nope+rope] },
			func(p int) []float64 { return cache.values[p][h*value:][:value] })...)
	}
	return m.matvec(prefix+"o_proj.weight", out), selected
}

// index is the DSA indexer: the positions to attend to, or nil for all.
func (m *refModel) index(prefix string, x, latentQuery []float64, position int, cache *refCache) []int {
	heads, dim, rope := m.int("index_n_heads"), m.int("index_head_dim"), m.int("qk_rope_head_dim")
	key := m.matvec(prefix+"wk.weight", x)
	mean, variance := 0.0, 0.0
	for _, v := range key {
		mean += v / float64(dim)
	}
	for _, v := range key {
		variance += (v - mean) * (v - mean) / float64(dim)
	}
	for i := range key {
		key[i] = (key[i]-mean)/math.Sqrt(variance+1e-6)*m.tensors[prefix+"k_norm.weight"].data[i] + m.tensors[prefix+"k_norm.bias"].data[i]
	}
	m.rotate(key, position, rope, refIndexInterleaved)
	cache.index = append(cache.index, key)
	if position+1 <= m.int("index_topk") {
		return nil
	}
	q := m.matvec(prefix+"wq_b.weight", latentQuery)
	weights := m.matvec(prefix+"weights_proj.weight", x)
	scores := make([]float64, position+1)
	for h := range heads {
		query := q[h*dim:][:dim]
		m.rotate(query, position, rope, refIndexInterleaved)
		for p := range scores {
			scores[p] += weights[h] * math.Max(dot(query, cache.index[p])/math.Sqrt(float64(dim)), 0)
		}
	}
	order := upTo(position)
	if m.torchBatch > 0 {
		order = torchOrder(scores, m.int("index_topk"), max(len(scores), m.torchBatch))
	} else {
		sort.SliceStable(order, func(a, b int) bool { return scores[order[a]] > scores[order[b]] })
	}
	order = order[:m.int("index_topk")]
	sort.Ints(order)
	return order
}

// torchOrder puts the k best of scores first as torch.topk does on the CPU: by std::nth_element of libstdc++ over all n positions of a
// batch, those not yet visible at −Inf. Which of several equal scores come first depends on n, and thereby on how much
// text follows: transformers itself gives a token other neighbours in a prompt than while generating. An engine with a cache cannot, and
// should not, do the same; here it proves that ties are all that differs.
func torchOrder(scores []float64, k, n int) []int {
	order := upTo(n - 1)
	value := func(i int) float64 {
		if i < len(scores) {
			return scores[i]
		}
		return math.Inf(-1)
	}
	before := func(a, b int) bool { return value(a) > value(b) }
	swap := func(i, j int) { order[i], order[j] = order[j], order[i] }
	first, last := 0, n
	for last-first > 3 {
		// The median of the second, middle and last becomes the pivot, at first.
		a, b, c := first+1, first+(last-first)/2, last-1
		median := b
		if before(order[a], order[b]) {
			if !before(order[b], order[c]) {
				median = a
				if before(order[a], order[c]) {
					median = c
				}
			}
		} else if before(order[a], order[c]) {
			median = a
		} else if before(order[b], order[c]) {
			median = c
		}
		swap(first, median)
		low, high := first+1, last
		for {
			for before(order[low], order[first]) {
				low++
			}
			high--
			for before(order[first], order[high]) {
				high--
			}
			if low >= high {
				break
			}
			swap(low, high)
			low++
		}
		if low <= k-1 {
			first = low
		} else {
			last = low
		}
	}
	for i := first + 1; i < last; i++ {
		for j := i; j > first && before(order[j], order[j-1]); j-- {
			swap(j, j-1)
		}
	}
	return order
}

// refIndexInterleaved: the indexer of glm_moe_dsa turns pairs as the attention does.
const refIndexInterleaved = true

func (m *refModel) gqa(prefix string, x []float64, position int, cache *refCache) []float64 {
	heads, kvHeads := m.int("num_attention_heads"), m.int("num_key_value_heads")
	dim := int(m.number("head_dim", float64(m.int("hidden_size")/heads)))
	q, k, v := m.matvec(prefix+"q_proj.weight", x), m.matvec(prefix+"k_proj.weight", x), m.matvec(prefix+"v_proj.weight", x)
	turned := dim
	if p, ok := m.config["partial_rotary_factor"].(float64); ok {
		turned = int(float64(dim) * p)
	}
	if w, ok := m.tensors[prefix+"q_norm.weight"]; ok && w.shape[0] == len(q) && m.family() == "olmoe" {
		q, k = m.rms(prefix+"q_norm.weight", q), m.rms(prefix+"k_norm.weight", k)
	} else if ok {
		for h := range heads {
			copy(q[h*dim:], m.rms(prefix+"q_norm.weight", q[h*dim:][:dim]))
		}
		for h := range kvHeads {
			copy(k[h*dim:], m.rms(prefix+"k_norm.weight", k[h*dim:][:dim]))
		}
	}
	if limit, ok := m.config["clip_qkv"].(float64); ok {
		for _, s := range [][]float64{q, k, v} {
			for i := range s {
				s[i] = math.Max(-limit, math.Min(limit, s[i]))
			}
		}
	}
	for h := range heads {
		m.rotate(q[h*dim:][:dim], position, turned, false)
	}
	for h := range kvHeads {
		m.rotate(k[h*dim:][:dim], position, turned, false)
	}
	cache.keys, cache.values = append(cache.keys, k), append(cache.values, v)
	var out []float64
	for h := range heads {
		g := h / (heads / kvHeads)
		out = append(out, attend(q[h*dim:][:dim], 1/math.Sqrt(float64(dim)), upTo(position),
			func(p int) []float64 { return cache.keys[p][g*dim:][:dim] },
			func(p int) []float64 { return cache.values[p][g*dim:][:dim] })...)
	}
	return m.matvec(prefix+"o_proj.weight", out)
}

// furthest is max|a−b| / max|b|.
func furthest(a, b []float64) float64 {
	difference, size := 0.0, 0.0
	for i := range b {
		difference = math.Max(difference, math.Abs(a[i]-b[i]))
		if math.IsNaN(a[i]) {
			return math.Inf(1)
		}
		size = math.Max(size, math.Abs(b[i]))
	}
	return difference / size
}

func flatten(rows [][]float64) []float64 {
	var all []float64
	for _, r := range rows {
		all = append(all, r...)
	}
	return all
}

var oracleNames = []string{"deepseek_v3", "glm4_moe", "glm4_moe_lite", "glm_moe_dsa", "glm_moe_dsa_dense", "olmoe", "qwen3_moe"}

type oracle struct {
	dir     string
	Prompt  []int32 `json:"prompt"`
	Greedy  []int32 `json:"greedy"`
	tensors map[string]tensor
}

func loadOracle(t testing.TB, dir string) *oracle {
	t.Helper()
	o := &oracle{dir: dir, tensors: readTensors(t, filepath.Join(dir, "reference.safetensors"))}
	b, err := os.ReadFile(filepath.Join(dir, "reference.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, o); err != nil {
		t.Fatal(err)
	}
	return o
}

func TestReferenceAgreesWithTransformers(t *testing.T) {
	for _, name := range oracleNames {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join("../../testdata/oracles", name)
			o := loadOracle(t, dir)
			m := loadReference(t, dir)
			m.torchBatch = len(o.Prompt)
			got := m.forward(o.Prompt)
			for l := range got.hidden {
				if e := furthest(flatten(got.hidden[l]), o.tensors[fmt.Sprintf("hidden.%d", l)].data); e > 5e-5 {
					t.Fatalf("hidden state %d differs by %.2g", l, e)
				}
			}
			if e := furthest(flatten(got.logits), o.tensors["logits"].data); e > 5e-5 {
				t.Fatalf("logits differ by %.2g", e)
			}
		})
	}
}
