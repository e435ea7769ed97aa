package container

import (
	"bytes"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// published is a container in published form that a test makes, changes and writes.
type published struct {
	config  map[string]any
	tensors []tensorData
	stamps  map[string]string
}

// publish quantises random weights for a configuration, each as format says ("" or a float format: as F32).
func publish(t testing.TB, config map[string]any, format func(name string) string) *published {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	p := &published{config: config, stamps: map[string]string{}}
	random := rand.New(rand.NewPCG(3, 4))
	add := func(s tensorSpec) {
		values := make([]float32, s.rows*s.columns)
		for i := range values {
			values[i] = float32(random.NormFloat64() * 0.05)
		}
		name := format(s.name)
		if s.floats || s.class == Unquantised || name == "" {
			shape := []int64{int64(s.rows), int64(s.columns)}
			if s.vector {
				shape = shape[1:]
			}
			p.tensors = append(p.tensors, tensorData{s.name, "F32", shape, bytesOf(values)})
			return
		}
		// Group 96 is in no user's list but in published containers.
		e := Encoding{Int4Group, 96}
		if name != "int4-g96" {
			if e, err = ParseEncoding(name); err != nil {
				t.Fatal(err)
			}
		}
		data, scales, err := Quantise(e, s.rows, s.columns, values)
		if err != nil {
			t.Fatal(err)
		}
		p.tensors = append(p.tensors, tensorData{s.name, "U8", nil, data}, tensorData{s.name + ".qs", "F32", nil, bytesOf(scales)})
	}
	c.resident(add)
	for layer, sparse := range c.Sparse {
		for e := 0; sparse && e < c.MoE.Experts; e++ {
			for i, part := range expertParts {
				rows, columns := c.expertShape(i)
				add(tensorSpec{name: expertPrefix(layer, e) + "." + part + ".weight", rows: rows, columns: columns, class: c.expertClass(layer)})
			}
		}
	}
	return p
}

func (p *published) find(t testing.TB, name string) *tensorData {
	t.Helper()
	i := slices.IndexFunc(p.tensors, func(x tensorData) bool { return x.name == name })
	if i < 0 {
		t.Fatalf("no tensor %q", name)
	}
	return &p.tensors[i]
}

func (p *published) remove(substring string) {
	p.tensors = slices.DeleteFunc(p.tensors, func(x tensorData) bool { return strings.Contains(x.name, substring) })
}

// write puts the container into files of the given names, the tensors shared out in turn.
func (p *published) write(t testing.TB, names ...string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "published")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(p.config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	var metadata map[string]string
	if len(p.stamps) > 0 {
		stamps, err := json.Marshal(p.stamps)
		if err != nil {
			t.Fatal(err)
		}
		metadata = map[string]string{stampKey: string(stamps)}
	}
	for i, name := range names {
		share := p.tensors[i*len(p.tensors)/len(names) : (i+1)*len(p.tensors)/len(names)]
		writeSafetensors(t, filepath.Join(dir, name), metadata, share)
	}
	return dir
}

// ambiguousConfig has a q_a_proj of [4, 512]: as int8-row and as fp8 it has 2048 bytes and 4 scales.
func ambiguousConfig(t testing.TB) map[string]any {
	text, err := os.ReadFile(filepath.Join(testdata, "oracles/glm_moe_dsa/config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]any{"hidden_size": 512, "q_lora_rank": 4, "num_hidden_layers": 2, "n_routed_experts": 4, "num_experts_per_tok": 2, "vocab_size": 40} {
		m[key] = value
	}
	return m
}

const ambiguousName = "model.layers.0.self_attn.q_a_proj.weight"

// Sizes that fit two readings are told apart by the stamp, else by relatives and bytes; without either, or when they disagree, the
// load is refused with both readings named.
func TestTwoReadings(t *testing.T) {
	every := func(format string) func(string) string { return func(string) string { return format } }
	only := func(name, format, others string) func(string) string {
		return func(n string) string {
			if strings.Contains(n, name) {
				return format
			}
			return others
		}
	}
	// silence makes bytes that both readings explain: no NaN code, and −127 in every row.
	silence := func(p *published) {
		for _, x := range p.tensors {
			if strings.HasSuffix(x.name, "q_a_proj.weight") {
				for i := range x.data {
					x.data[i] = byte(i%60) + 1
					if i%512 == 7 {
						x.data[i] = 0x81
					}
				}
			}
		}
	}
	stamp := func(format string) func(*published) {
		return func(p *published) {
			for _, layer := range []string{"0", "1"} {
				p.stamps["model.layers."+layer+".self_attn.q_a_proj.weight"] = format
			}
		}
	}
	both := []string{"int8-row", "fp8-e4m3-b128", ambiguousName}
	for _, c := range []struct {
		name   string
		format func(string) string
		edit   func(*published)
		want   string // empty: refused
		says   []string
	}{
		{"all int8, bytes and relatives agree", every("int8"), nil, "int8-row", nil},
		{"all fp8, bytes and relatives agree", every("fp8"), nil, "fp8-e4m3-b128", nil},
		{"only these quantised, bytes say int8", only("q_a_proj", "int8", ""), nil, "int8-row", nil},
		{"only these quantised, bytes say fp8", only("q_a_proj", "fp8", ""), nil, "fp8-e4m3-b128", nil},
		{"silent bytes, relatives int8", every("int8"), silence, "int8-row", nil},
		{"silent bytes, relatives fp8", every("fp8"), silence, "fp8-e4m3-b128", nil},
		{"silent bytes, no relatives", only("q_a_proj", "int8", ""), silence, "", append(both, "nothing in the container tells")},
		{"silent bytes, relatives of both kinds", only("q_a_proj", "int8", "int8"), func(p *published) {
			silence(p)
			q := publish(t, ambiguousConfig(t), every("fp8"))
			for _, name := range []string{"model.layers.0.self_attn.o_proj.weight", "model.layers.0.self_attn.o_proj.weight.qs"} {
				*p.find(t, name) = *q.find(t, name)
			}
		}, "", append(both, "nothing in the container tells")},
		{"bytes int8, relatives fp8", only("q_a_proj", "int8", "fp8"), nil, "", append(both, "its bytes look like int8-row, but its relatives in the container are fp8")},
		{"bytes fp8, relatives int8", only("q_a_proj", "fp8", "int8"), nil, "", append(both, "its bytes look like fp8-e4m3-b128, but its relatives in the container are int8-row")},
		{"stamped int8 against relatives", only("q_a_proj", "int8", "fp8"), stamp("int8-row"), "int8-row", nil},
		{"stamped fp8 against relatives", only("q_a_proj", "fp8", "int8"), stamp("fp8-e4m3-b128"), "fp8-e4m3-b128", nil},
		{"stamped int8, silent, alone", only("q_a_proj", "int8", ""), func(p *published) { silence(p); stamp("int8-row")(p) }, "int8-row", nil},
		{"stamped fp8, silent, alone", only("q_a_proj", "int8", ""), func(p *published) { silence(p); stamp("fp8-e4m3-b128")(p) }, "fp8-e4m3-b128", nil},
	} {
		p := publish(t, ambiguousConfig(t), c.format)
		if c.edit != nil {
			c.edit(p)
		}
		container, err := Open(p.write(t, "weights.safetensors"))
		if c.want == "" {
			if err == nil {
				t.Errorf("%s: opened", c.name)
				container.Close()
				continue
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("%s: %q is not in: %v", c.name, text, err)
				}
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if w, _ := container.Weight(ambiguousName); w.Encoding.String() != c.want {
			t.Errorf("%s: read as %s", c.name, w.Encoding)
		}
		container.Close()
	}
}

// A tensor that its own bytes settled speaks for the same tensor of a layer whose bytes are silent.
func TestLayersSpeakForEachOther(t *testing.T) {
	p := publish(t, ambiguousConfig(t), func(name string) string { return map[bool]string{true: "fp8"}[strings.Contains(name, "q_a_proj")] })
	silent := p.find(t, "model.layers.1.self_attn.q_a_proj.weight").data
	for i := range silent {
		silent[i] = byte(i%60) + 1
		if i%512 == 7 {
			silent[i] = 0x81
		}
	}
	c := open(t, p.write(t, "a.safetensors"))
	if w, _ := c.Weight("model.layers.1.self_attn.q_a_proj.weight"); w.Encoding.Format != FP8Block128 {
		t.Errorf("read as %s", w.Encoding)
	}
}

// The other coincidences: rows of 48 are 24 bytes and one scale as int4 and int3; rows of 24 as int8 and int3; rows of 128 have
// two groups of 64 and of 96.
func TestOtherCoincidences(t *testing.T) {
	for _, c := range []struct {
		hidden         int
		format, stamps string
		want           string
	}{
		{48, "int4", "", "int4-row"}, {48, "int3", "", "int3-g64"}, {24, "int8", "", "int8-row"}, {24, "int3", "", "int3-g64"},
		{128, "int4-g64", "", "int4-g64"}, {128, "int4-g96", "", "int4-g96"}, {128, "int4-g64", "int4-grouped", "int4-g64"}, {128, "int4-g96", "int4-grouped", "int4-g96"},
		{128, "int4-g32", "int4-grouped", "int4-g32"}, {200, "int4-g96", "", "int4-g96"},
	} {
		m := readConfig(t, "oracles/qwen3_moe")
		m["hidden_size"] = c.hidden
		m["num_hidden_layers"] = 1
		p := publish(t, m, func(name string) string {
			if strings.Contains(name, "q_proj") {
				return c.format
			}
			return ""
		})
		const name = "model.layers.0.self_attn.q_proj.weight"
		if c.stamps != "" {
			p.stamps[name] = c.stamps
		}
		container, err := Open(p.write(t, "a.safetensors"))
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		if w, _ := container.Weight(name); w.Encoding.String() != c.want {
			t.Errorf("%+v: read as %s", c, w.Encoding)
		}
		container.Close()
	}
}

// Shards of any names and number, with tensors in any order, give the same weights.
func TestShardsOfAnyNames(t *testing.T) {
	p := publish(t, readConfig(t, "containers/int4-g64"), func(name string) string { return "int4-g64" })
	one := open(t, p.write(t, "b.safetensors"))
	rand.New(rand.NewPCG(1, 1)).Shuffle(len(p.tensors), func(i, j int) { p.tensors[i], p.tensors[j] = p.tensors[j], p.tensors[i] })
	many := open(t, p.write(t, "z.safetensors", "out-00007.safetensors", "A b.safetensors", "é.safetensors"))
	for name := range one.weights {
		a, err := one.Block(name)
		if err != nil {
			t.Fatal(err)
		}
		b, err := many.Block(name)
		if err != nil || a.Encoding != b.Encoding || !bytes.Equal(a.Data, b.Data) || !slices.Equal(a.Scales, b.Scales) {
			t.Fatalf("%s differs (%v)", name, err)
		}
	}
	e, err := many.Expert(1, 5)
	if err != nil {
		t.Fatal(err)
	}
	slot := make([]byte, e.Layout.SlotBytes)
	if err := many.ReadExpert(&e, slot); err != nil {
		t.Fatal(err)
	}
	_, _, down := e.Layout.Blocks(slot)
	if want := p.find(t, "model.layers.1.mlp.experts.5.down_proj.weight"); !bytes.Equal(down.Data, want.data) {
		t.Error("the expert's down_proj came from elsewhere")
	}
}

// Some converters write an expert as one tensor, gate, up and down after each other.
func TestMergedExperts(t *testing.T) {
	p := publish(t, readConfig(t, "oracles/olmoe"), func(name string) string { return "int8" })
	want := open(t, p.write(t, "a.safetensors"))
	for layer := range 4 {
		for e := range 16 {
			var data, scales []byte
			for _, part := range expertParts {
				name := expertPrefix(layer, e) + "." + part + ".weight"
				data = append(data, p.find(t, name).data...)
				scales = append(scales, p.find(t, name+".qs").data...)
			}
			p.remove(expertPrefix(layer, e) + ".")
			p.tensors = append(p.tensors, tensorData{expertPrefix(layer, e) + ".merged_weight", "U8", nil, data}, tensorData{expertPrefix(layer, e) + ".merged_weight.qs", "F32", nil, scales})
		}
	}
	got := open(t, p.write(t, "a.safetensors"))
	for name := range want.weights {
		a, _ := want.Block(name)
		b, err := got.Block(name)
		if err != nil || a.Encoding != b.Encoding || !bytes.Equal(a.Data, b.Data) || !slices.Equal(a.Scales, b.Scales) {
			t.Fatalf("%s differs (%v)", name, err)
		}
	}
	if e, err := got.Expert(3, 3); err != nil || len(e.Reads) != 1 && len(e.Reads) != 2 {
		t.Errorf("%+v, %v", e, err)
	}
}

// Checkpoints in fp8 with scales for 128x128 blocks are read as they are.
func TestFP8Checkpoint(t *testing.T) {
	m := readConfig(t, "oracles/deepseek_v3")
	for key, value := range map[string]any{"hidden_size": 200, "num_nextn_predict_layers": 0, "num_hidden_layers": 2} {
		m[key] = value
	}
	p := publish(t, m, func(name string) string {
		if strings.Contains(name, "embed") || strings.Contains(name, "lm_head") {
			return ""
		}
		return "fp8"
	})
	packed := open(t, p.write(t, "a.safetensors"))
	for i := range p.tensors {
		x := &p.tensors[i]
		w, ok := packed.weights[strings.TrimSuffix(x.name, ".qs")]
		if !ok || w.Encoding.Format != FP8Block128 {
			continue
		}
		if strings.HasSuffix(x.name, ".qs") {
			x.name = strings.TrimSuffix(x.name, ".qs") + "_scale_inv"
			x.shape = []int64{int64(w.Rows+127) / 128, int64(w.Columns+127) / 128}
		} else {
			x.dtype, x.shape = "F8_E4M3", []int64{int64(w.Rows), int64(w.Columns)}
		}
	}
	checkpoint := open(t, p.write(t, "a.safetensors"))
	if len(checkpoint.Ignored) > 0 {
		t.Errorf("unused: %v", checkpoint.Ignored)
	}
	for name := range packed.weights {
		a, _ := packed.Floats(name)
		b, err := checkpoint.Floats(name)
		if err != nil || !slices.Equal(a, b) {
			t.Fatalf("%s differs (%v)", name, err)
		}
	}
	dir, report := mustConvert(t, checkpoint.Dir, Options{})
	c := open(t, dir)
	if w, _ := c.Weight("model.layers.1.mlp.experts.0.down_proj.weight"); w.Encoding.String() != "int4-g64" {
		t.Errorf("experts became %s", w.Encoding)
	}
	for _, r := range report.Classes {
		if r.Class == RoutedExperts && (r.RelativeError < 0.05 || r.RelativeError > 0.12) {
			t.Errorf("experts lost %v", r.RelativeError)
		}
	}
	// Other blocks and scales of other kinds are named.
	for _, edit := range []func(*published){
		func(p *published) { p.remove("weight_scale_inv") },
		func(p *published) { p.find(t, "model.layers.0.self_attn.kv_b_proj.weight_scale_inv").dtype = "U32" },
		func(p *published) {
			x := p.find(t, "model.layers.0.self_attn.o_proj.weight_scale_inv")
			x.shape = []int64{1, int64(len(x.data) / 4)}
		},
	} {
		broken := &published{config: p.config, tensors: slices.Clone(p.tensors)}
		edit(broken)
		if _, err := Open(broken.write(t, "a.safetensors")); err == nil || !strings.Contains(err.Error(), "128x128") {
			t.Errorf("%v", err)
		}
	}
	p.remove("layers.1.self_attn.kv_b_proj.weight_scale_inv")
	if _, err := Open(p.write(t, "a.safetensors")); err == nil || !strings.Contains(err.Error(), "missing (model.layers.1.self_attn.kv_b_proj.weight_scale_inv)") {
		t.Errorf("%v", err)
	}
}
