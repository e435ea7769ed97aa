package container

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// The numbers of a description, counted by hand from the header of the bytes.
func TestDescribe(t *testing.T) {
	d, err := Describe(checkpointOnly(t, filepath.Join(testdata, "containers", "int4-g64")))
	if err != nil {
		t.Fatal(err)
	}
	// Experts: 2 sparse layers of 16, each three matrices of 64x128; 4 of 16 are used.
	experts := int64(2 * 16 * 3 * 64 * 128)
	var others, embedding int64 = 0, 384 * 128
	for _, file := range []string{"out-00000.safetensors", "out-00001.safetensors"} {
		for name, x := range rawTensors(t, filepath.Join(testdata, "containers", "int4-g64", file)) {
			if !strings.HasSuffix(name, ".qs") && !strings.Contains(name, "mlp.experts.") {
				n := int64(len(x.Data))
				switch {
				case x.Dtype == "F32":
					n /= 4
				case name != "lm_head.weight" && name != "model.embed_tokens.weight":
					n *= 2 // two weights a byte; those two have one
				}
				others += n
			}
		}
	}
	if d.Parameters != experts+others || d.ActiveParameters != experts/4+others-embedding+128 || d.MTPParameters != 0 {
		t.Errorf("parameters %d, active %d; want %d, %d", d.Parameters, d.ActiveParameters, experts+others, experts/4+others-embedding+128)
	}
	// gate and up have two groups of 64 a row, down (64 inputs) one: 4096 + 512 bytes twice and 4096 + 512.
	if want := []ExpertSize{{16384, 32, "int4-g64, int4-g64, int4-row"}}; !slices.Equal(d.ExpertSizes, want) {
		t.Errorf("expert sizes %v, want %v", d.ExpertSizes, want)
	}
	if d.Layers != 3 || d.SparseLayers != 2 || d.IndexerLayers != 2 || d.IndexTopK != 20 || d.Context != 256 || d.Files != 2 || d.ReadsPerExpert != 2 || d.BytesPerToken != 2*4*16384 {
		t.Errorf("%+v", d)
	}
	// 3 layers of 64 latent and 16 rotary numbers, 2 of 32 index numbers, float32.
	if d.KVBytesPerToken != 4*(3*80+2*32) {
		t.Errorf("%d bytes a token", d.KVBytesPerToken)
	}
	// Of each sparse layer 4 experts; gate and up are one encoding, down the other.
	if d.Routed["int4-g64"] != 2*4*2*4608 || d.Routed["int4-row"] != 2*4*4608 || len(d.Routed) != 2 {
		t.Errorf("experts' part of a token's bytes: %v", d.Routed)
	}
	// In 3 layers 4 heads multiply and add 64 latent and 16 rotary numbers of a key, and 64 latent ones of a value.
	if d.AttentionOps != 2*3*4*(80+64) {
		t.Errorf("%d operations of attention", d.AttentionOps)
	}
	if len(d.Warnings) != 1 || !strings.Contains(d.Warnings[0], "tokenizer.json") {
		t.Errorf("warnings %q", d.Warnings)
	}
	if text, err := json.Marshal(d); err != nil || !strings.Contains(string(text), `"parameters":`) {
		t.Errorf("%s, %v", text, err)
	}
	if text := d.String(); !strings.Contains(text, "int4-g64 (glm_moe_dsa)") || !strings.Contains(text, "embeddings   int8-row") {
		t.Error(text)
	}
}

func TestDescribeWarns(t *testing.T) {
	dir, _ := mustConvert(t, tinyCheckpoint(t), Options{MTP: enc(t, "int4-g16"), Experts: enc(t, "int4")})
	d, err := Describe(dir)
	if err != nil {
		t.Fatal(err)
	}
	if text := strings.Join(d.Warnings, "\n"); !strings.Contains(text, "MTP layers are int4-g16") || !strings.Contains(text, "int4-row") {
		t.Errorf("warnings %q", text)
	}
	if d.ReadsPerExpert != 1 || d.MTPLayers != 1 || d.MTPParameters == 0 {
		t.Errorf("%+v", d)
	}
	for _, f := range d.Formats {
		if f.Class == "experts" && (f.RelativeError < 0.05 || f.RelativeError > 0.2) {
			t.Errorf("the measured error of experts is %v", f.RelativeError)
		}
	}
}

// The planned size of a configuration is the real one.
func TestSizeOf(t *testing.T) {
	in := tinyCheckpoint(t)
	dir, _ := mustConvert(t, in, Options{})
	c := open(t, dir)
	s := SizeOf(c.Config, Options{})
	e, err := c.Expert(1, 0)
	if err != nil {
		t.Fatal(err)
	}
	if s.ResidentBytes != c.ResidentBytes() || s.ExpertBytes != c.ExpertBytes() || s.RecordBytes != e.Layout.SlotBytes || s.Experts != 8 {
		t.Errorf("%+v, really %d and %d", s, c.ResidentBytes(), c.ExpertBytes())
	}
}

func TestIdentity(t *testing.T) {
	identity := func(dir string) string {
		t.Helper()
		id, err := open(t, dir).Identity()
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	p := small(t)
	dir := p.write(t, "a.safetensors", "b.safetensors")
	first := identity(dir)
	if again := identity(p.write(t, "a.safetensors", "b.safetensors")); again != first {
		t.Error("another folder with the same files has another identity")
	}
	if renamed := identity(p.write(t, "c.safetensors", "d.safetensors")); renamed != first {
		t.Error("renamed files have another identity")
	}
	p.find(t, "model.layers.1.mlp.experts.3.up_proj.weight").data[17] ^= 1
	if changed := identity(p.write(t, "a.safetensors", "b.safetensors")); changed == first {
		t.Error("changed weights have the same identity")
	}
}

func TestText(t *testing.T) {
	dir := small(t).write(t, "a.safetensors")
	write(t, dir, "tokenizer.json", lfsPointer)
	write(t, dir, "chat_template.jinja", "{{ x }}")
	c := open(t, dir)
	if text, err := c.Text("chat_template.jinja", 100); err != nil || string(text) != "{{ x }}" {
		t.Errorf("%q, %v", text, err)
	}
	for name, says := range map[string]string{"tokenizer.json": "git lfs pull", "chat_template.jinja": "more than the 3"} {
		limit := int64(1000)
		if name == "chat_template.jinja" {
			limit = 3
		}
		if _, err := c.Text(name, limit); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := c.Text("none", 1); !os.IsNotExist(err) && !strings.Contains(err.Error(), "missing") {
		t.Errorf("%v", err)
	}
}

// Loading into memory of other sizes is refused, and a file that was cut after opening is noticed.
func TestLoadChecksSizes(t *testing.T) {
	dir := small(t).write(t, "a.safetensors")
	c := open(t, dir)
	w, _ := c.Weight("model.layers.0.self_attn.o_proj.weight")
	if err := c.Load(w, make([]byte, w.Data.Bytes-1), make([]float32, w.Scales.Bytes/4)); err == nil {
		t.Error("too little memory was accepted")
	}
	e, _ := c.Expert(1, 1)
	if err := c.ReadExpert(&e, make([]byte, e.Layout.SlotBytes+1)); err == nil {
		t.Error("a slot of another size was accepted")
	}
	if err := os.Truncate(filepath.Join(dir, "a.safetensors"), 12000); err != nil {
		t.Fatal(err)
	}
	if err := c.ReadExpert(&e, make([]byte, e.Layout.SlotBytes)); err == nil || !strings.Contains(err.Error(), "shorter") {
		t.Errorf("%v", err)
	}
	if _, err := c.Expert(0, 0); err == nil {
		t.Error("a dense layer has an expert")
	}
	if _, err := c.Block("none"); err == nil {
		t.Error("a weight that is not there was read")
	}
}

// What formatRecords writes, parseRecords reads; what it accepts of anything else is safe to place in memory.
func FuzzRecords(f *testing.F) {
	layout := newLayout([3]part{{Encoding{Int4Group, 64}, 12, 130}, {Encoding{Format: Int8Row}, 12, 130}, {Encoding{Format: BF16}, 130, 12}})
	f.Add(formatRecords(map[string]ExpertLayout{"a": layout, "b": newLayout([3]part{{Encoding{Format: FP8Block128}, 3, 3}, {Encoding{Format: Int2Row}, 3, 3}, {Encoding{Format: Int3Group64}, 3, 3}})}))
	f.Fuzz(func(t *testing.T, text string) {
		records, err := parseRecords(text)
		if err != nil || !utf8.ValidString(text) { // headers are
			return
		}
		for _, l := range records {
			if l.SlotBytes > 1<<24 {
				continue
			}
			slot := make([]byte, l.SlotBytes)
			gate, up, down := l.Blocks(slot) // panics where a part lies outside
			for _, b := range []*Block{&gate, &up, &down} {
				if int64(len(b.Data)) != b.DataBytes(b.Rows, b.Columns) || int64(len(b.Scales)) != b.ScaleCount(b.Rows, b.Columns) {
					t.Fatalf("%+v from %s", l, text)
				}
			}
		}
		if again, err := parseRecords(formatRecords(records)); err != nil || !maps.Equal(again, records) {
			t.Fatalf("%v, %v from %s", again, err, text)
		}
	})
}
