package container

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func mustConvert(t *testing.T, in string, o Options) (string, *Report) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.colibri")
	r, err := convert(context.Background(), in, out, o, nil, &killed{})
	if err != nil {
		t.Fatal(err)
	}
	return out, r
}

func enc(t *testing.T, name string) Encoding {
	t.Helper()
	e, err := ParseEncoding(name)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func oracle(name string) string { return filepath.Join(testdata, "oracles", name) }

// all chooses one format for every class.
func all(e Encoding) Options {
	return Options{Experts: e, SharedExperts: e, Attention: e, DenseMLP: e, Embeddings: e, MTP: e, ShardBytes: 300 << 10}
}

// Every family converts to every format. What is read back is the source within the error that the format's bits allow: for a
// scale s the rounding is at most s/2 (int), for fp8 1/16 of the weight or half the smallest step.
func TestConvertEveryFamilyAndFormat(t *testing.T) {
	formats := []string{"f32", "bf16", "f16", "int8-row", "int4-row", "int2-row", "int4-g32", "int4-g64", "int3-g64", "fp8"}
	for _, family := range families {
		in := oracle(family)
		source := open(t, in)
		for _, format := range formats {
			if family != "glm_moe_dsa" && format != "int4-g64" {
				continue // one family meets every format, every family one format
			}
			e := enc(t, format)
			dir, report := mustConvert(t, in, all(e))
			c := open(t, dir)
			if len(c.Ignored) > 0 {
				t.Errorf("%s %s: unused tensors %v", family, format, c.Ignored)
			}
			if !maps.Equal(shapesOf(c), shapesOf(source)) {
				t.Fatalf("%s %s: weights differ", family, format)
			}
			for name, w := range c.weights {
				if w.Class != Unquantised && w.Encoding != e && !(e.Format == Int4Group && w.Columns <= e.Group) {
					t.Errorf("%s %s: %s is %s", family, format, name, w.Encoding)
				}
				// One expert in eight stands for the others: the independent decoder is slow.
				if n := strings.Index(name, ".experts."); n < 0 || name[n+9]%8 == '0'%8 {
					checkRounding(t, source, c, name)
				}
			}
			for _, r := range report.Classes {
				low, high := expectedError(r.Class, e)
				if r.RelativeError < low || r.RelativeError > high {
					t.Errorf("%s %s: %s lost %.3g, expected %.3g to %.3g", family, format, r.Class, r.RelativeError, low, high)
				}
			}
		}
	}
}

// expectedError is the relative error that a format's bits give for the oracles' normally distributed weights. With the largest of
// n normal numbers at about z standard deviations and qmax steps, the step is z/qmax and uniform rounding leaves step/sqrt(12):
// int8 rows z=2.7..3 -> 0.0065; int4-g64 z=2.4 -> 0.1; int4 rows z=2.6 -> 0.11; int3 z=2.4, qmax 3 -> 0.22; int2 leaves about 0.6 to 0.8;
// fp8 keeps 3 bits of mantissa: 0.026.
func expectedError(class Class, e Encoding) (low, high float64) {
	if class == Unquantised || e.Format == F32 || e.Format == BF16 {
		return 0, 0 // the source is bf16
	}
	switch e.Format {
	case F16:
		return 0, 1e-4 // subnormals
	case Int8Row:
		return 0.004, 0.009
	case Int4Row:
		return 0.08, 0.14
	case Int4Group:
		return 0.07, 0.12
	case Int3Group64:
		return 0.16, 0.27
	case Int2Row:
		return 0.45, 0.9
	case FP8Block128:
		return 0.02, 0.03
	}
	return 0, 0
}

func shapesOf(c *Container) map[string]string {
	m := map[string]string{}
	for name, w := range c.weights {
		m[name] = fmt.Sprintf("%d %d %s %d", w.Rows, w.Columns, w.Class, w.Layer)
	}
	return m
}

func checkRounding(t *testing.T, source, c *Container, name string) {
	t.Helper()
	want, err := source.Floats(name)
	if err != nil {
		t.Fatal(err)
	}
	b, err := c.Block(name)
	if err != nil {
		t.Fatal(err)
	}
	perRow := int(b.ScaleCount(1, b.Columns))
	for i, v := range decode(&b) {
		r, k := i/b.Columns, i%b.Columns
		var allowed float64
		switch b.Format {
		case F16:
			allowed = 3e-8
		case Int8Row, Int4Row, Int2Row, Int4Group, Int3Group64:
			allowed = 0.5001 * float64(b.Scales[r*perRow+k/b.groupWidth(b.Columns)])
		case FP8Block128:
			s := float64(b.Scales[r/128*perRow+k/128])
			allowed = max(math.Abs(float64(want[i]))/16, s/1024) * 1.0001
		}
		if d := math.Abs(float64(v) - float64(want[i])); d > allowed {
			t.Fatalf("%s as %s: [%d, %d] is %v, was %v (allowed %.3g)", name, b.Encoding, r, k, v, want[i], allowed)
		}
	}
}

// decode uses the independent decoder for packed formats.
func decode(b *Block) []float32 {
	if b.Format.IsFloat() {
		return Dequantise(b)
	}
	return decodeByTheBook(b.Encoding, b.Rows, b.Columns, b.Data, b.Scales)
}

// Each expert of ours is one aligned record, read whole, with a checksum that holds; damage is noticed.
func TestExpertRecords(t *testing.T) {
	dir, _ := mustConvert(t, oracle("glm_moe_dsa"), Options{ShardBytes: 1 << 20})
	c := open(t, dir)
	for index := range c.Config.MoE.Experts {
		e, err := c.Expert(2, index)
		if err != nil {
			t.Fatal(err)
		}
		r := e.Reads[0]
		if len(e.Reads) != 1 || r.Pieces != nil || r.Offset%ExpertAlignment != 0 || r.Bytes%ExpertAlignment != 0 || r.Bytes != e.Layout.SlotBytes || !e.HasSum {
			t.Fatalf("%+v", e)
		}
		slot := make([]byte, e.Layout.SlotBytes)
		if err := c.ReadExpert(&e, slot); err != nil {
			t.Fatal(err)
		}
		_, up, _ := e.Layout.Blocks(slot)
		direct, err := c.Block(fmt.Sprintf("model.layers.2.mlp.experts.%d.up_proj.weight", index))
		if err != nil || !bytes.Equal(up.Data, direct.Data) || !slices.Equal(up.Scales, direct.Scales) || up.Encoding != direct.Encoding {
			t.Fatalf("expert %d: record and weight differ (%v)", index, err)
		}
		e.Sum ^= 1
		if err := c.ReadExpert(&e, slot); err == nil || !strings.Contains(err.Error(), "damaged") {
			t.Errorf("a wrong checksum passed: %v", err)
		}
	}
}

// A published container converts without loss where no format is named, and its quantised weights keep their bytes.
func TestConvertKeepsPublishedFormats(t *testing.T) {
	for _, name := range []string{"int4-g64", "int3-g64", "fp8", "int2-row"} {
		in := filepath.Join(testdata, "containers", name)
		source := open(t, in)
		dir, report := mustConvert(t, in, Options{Experts: map[string]Encoding{"fp8": {Format: FP8Block128}}[name]})
		c := open(t, dir)
		for weight, w := range source.weights {
			if w.Encoding.Format.IsFloat() || w.Class != RoutedExperts {
				continue
			}
			a, _ := source.Block(weight)
			b, err := c.Block(weight)
			if err != nil || a.Encoding != b.Encoding || !bytes.Equal(a.Data, b.Data) || !slices.Equal(a.Scales, b.Scales) {
				t.Fatalf("%s: %s changed", name, weight)
			}
		}
		for _, r := range report.Classes {
			if r.Class == RoutedExperts && r.RelativeError != 0 {
				t.Errorf("%s: %s lost %v", name, r.Class, r.RelativeError)
			}
		}
	}
}

// killed is a disk that stops working at a chosen operation (never for 0), a write half done. It does not wait for the hardware.
type killed struct {
	realDisk
	operations, at int
}

var errKilled = errors.New("killed")

func (k *killed) step() error {
	k.operations++
	if k.at > 0 && k.operations >= k.at {
		return errKilled
	}
	return nil
}

func (k *killed) Write(f *os.File, b []byte, at int64) error {
	if err := k.step(); err != nil {
		k.realDisk.Write(f, b[:len(b)/2], at)
		return err
	}
	return k.realDisk.Write(f, b, at)
}

func (k *killed) Sync(f *os.File) error {
	if err := k.step(); err != nil {
		return err
	}
	return nil // the test needs no durability
}

func (k *killed) Rename(from, to string) error {
	if err := k.step(); err != nil {
		return err
	}
	return k.realDisk.Rename(from, to)
}

func (k *killed) Remove(path string) error {
	if err := k.step(); err != nil {
		return err
	}
	return k.realDisk.Remove(path)
}

func (k *killed) SyncDirectory(string) error { return k.step() }

// contentsOf reads a folder's files.
func contentsOf(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := map[string]string{}
	for _, e := range entries {
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		m[e.Name()] = string(text)
	}
	return m
}

// A conversion that is killed at any operation and continued gives the bytes of one that was not; until then
// the folder is not taken for a model.
func TestResumeAfterEveryKill(t *testing.T) {
	in := tinyCheckpoint(t)
	o := Options{ShardBytes: 40 << 10}
	whole := &killed{}
	want := filepath.Join(t.TempDir(), "whole")
	if _, err := convert(context.Background(), in, want, o, nil, whole); err != nil {
		t.Fatal(err)
	}
	reference := contentsOf(t, want)
	if len(reference) < 5 || whole.operations < 40 {
		t.Fatalf("%d files, %d operations: too few to test anything", len(reference), whole.operations)
	}
	before := contentsOf(t, in)
	kept := 0
	for at := 1; at <= whole.operations; at++ {
		out := filepath.Join(t.TempDir(), "out")
		if _, err := convert(context.Background(), in, out, o, nil, &killed{at: at}); !errors.Is(err, errKilled) {
			t.Fatalf("operation %d: %v", at, err)
		}
		if maps.Equal(contentsOf(t, out), reference) {
			continue // killed after the last change
		}
		if c, err := Open(out); err == nil {
			c.Close()
			t.Fatalf("operation %d: the unfinished folder opened", at)
		}
		// Sometimes killed a second time, a little later, before it is left alone.
		if at%4 == 0 {
			convert(context.Background(), in, out, o, nil, &killed{at: at})
		}
		r, err := convert(context.Background(), in, out, o, nil, &killed{})
		if err != nil {
			if maps.Equal(contentsOf(t, out), reference) {
				continue // the second run had finished
			}
			t.Fatalf("operation %d: %v", at, err)
		}
		kept += r.FilesKept
		if got := contentsOf(t, out); !maps.Equal(got, reference) {
			t.Fatalf("operation %d: continued to %v, want %v", at, slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(reference)))
		}
	}
	if kept == 0 {
		t.Error("no finished file was ever kept")
	}
	if !maps.Equal(before, contentsOf(t, in)) {
		t.Error("the input changed")
	}
}

// tinyCheckpoint is a two-layer model of a few kilobytes.
func tinyCheckpoint(t *testing.T) string {
	t.Helper()
	m := readConfig(t, "oracles/glm_moe_dsa")
	for key, value := range map[string]any{"hidden_size": 24, "intermediate_size": 20, "moe_intermediate_size": 12, "num_hidden_layers": 2, "n_routed_experts": 4,
		"num_experts_per_tok": 2, "vocab_size": 40, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6,
		"index_n_heads": 2, "index_head_dim": 8, "num_attention_heads": 2, "num_nextn_predict_layers": 1} {
		m[key] = value
	}
	dir := filepath.Join(t.TempDir(), "tiny")
	writeCheckpoint(t, dir, m, nil)
	if err := os.WriteFile(filepath.Join(dir, "generation_config.json"), []byte(`{"eos_token_id": 3}`), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestConversionsAreNotMixed(t *testing.T) {
	in := tinyCheckpoint(t)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := convert(context.Background(), in, out, Options{}, nil, &killed{at: 20}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	_, err := Convert(context.Background(), in, out, Options{Experts: enc(t, "int8")}, nil)
	if err == nil || !strings.Contains(err.Error(), "experts as int4-g64 instead of int8-row") {
		t.Errorf("other formats: %v", err)
	}
	if _, err = Convert(context.Background(), in, out, Options{ShardBytes: 1 << 20}, nil); err == nil || !strings.Contains(err.Error(), "other settings") {
		t.Errorf("another shard size: %v", err)
	}
	if _, err = Convert(context.Background(), oracle("qwen3_moe"), out, Options{}, nil); err == nil || !strings.Contains(err.Error(), "another source") {
		t.Errorf("another source: %v", err)
	}
	if _, err = Convert(context.Background(), in, out, Options{}, nil); err != nil {
		t.Fatal(err)
	}
	if _, err = Convert(context.Background(), in, out, Options{}, nil); err == nil || !strings.Contains(err.Error(), "already holds") {
		t.Errorf("a finished container was written over: %v", err)
	}
	for _, inside := range []string{in, filepath.Join(in, "sub", "out"), filepath.Join(in, "..", filepath.Base(in), "x")} {
		if _, err = Convert(context.Background(), in, inside, Options{}, nil); err == nil || !strings.Contains(err.Error(), "outside it") {
			t.Errorf("%s: %v", inside, err)
		}
	}
}

// A file of the right name that this conversion did not write is not taken for its own.
func TestForeignShardIsRefused(t *testing.T) {
	in := tinyCheckpoint(t)
	out := filepath.Join(t.TempDir(), "out")
	if _, err := convert(context.Background(), in, out, Options{}, nil, &killed{at: 8}); !errors.Is(err, errKilled) {
		t.Fatal(err)
	}
	writeSafetensors(t, filepath.Join(out, "model-00001-of-00002.safetensors"), nil, []tensorData{{"a", "U8", nil, []byte{1}}})
	if _, err := Convert(context.Background(), in, out, Options{}, nil); err == nil || !strings.Contains(err.Error(), "does not belong") {
		t.Errorf("%v", err)
	}
}

// lying is a disk that stores one byte of one write wrong and says nothing.
type lying struct {
	killed
	writes, at int
}

func (l *lying) Write(f *os.File, b []byte, at int64) error {
	if l.writes++; l.writes == l.at {
		b = bytes.Clone(b)
		b[len(b)/2] ^= 4
	}
	return l.killed.Write(f, b, at)
}

// What was written is read back: a damaged file never gets its name.
func TestConvertNoticesADiskThatLies(t *testing.T) {
	in := tinyCheckpoint(t)
	for at := 3; at < 60; at += 7 { // the first write is the manifest
		out := filepath.Join(t.TempDir(), "out")
		_, err := convert(context.Background(), in, out, Options{}, nil, &lying{at: at})
		if err == nil || !strings.Contains(err.Error(), "check the disk") {
			t.Fatalf("write %d: %v", at, err)
		}
		if finished, _ := filepath.Glob(filepath.Join(out, "model-*")); at < 50 && len(finished) > 0 {
			t.Errorf("write %d: %v was finished", at, finished)
		}
		if _, err := convert(context.Background(), in, out, Options{}, nil, &killed{}); err != nil {
			t.Errorf("write %d: a second conversion: %v", at, err)
		}
	}
}

func TestConvertWarns(t *testing.T) {
	_, r := mustConvert(t, tinyCheckpoint(t), Options{MTP: enc(t, "int4-g64"), Experts: enc(t, "int4")})
	if text := strings.Join(r.Warnings, "\n"); !strings.Contains(text, "MTP layers are written as int4-g64") || !strings.Contains(text, "int4-row") {
		t.Errorf("warnings %q", text)
	}
	_, r = mustConvert(t, filepath.Join(testdata, "containers", "int4-g64"), Options{Experts: enc(t, "int8")})
	if text := strings.Join(r.Warnings, "\n"); !strings.Contains(text, "does not come back") {
		t.Errorf("warnings %q", text)
	}
	if _, r = mustConvert(t, tinyCheckpoint(t), Options{}); len(r.Warnings) > 0 {
		t.Errorf("warnings %q", r.Warnings)
	}
}

func TestConvertStopsWhenAsked(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Convert(ctx, tinyCheckpoint(t), filepath.Join(t.TempDir(), "out"), Options{}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
}

// Weights that are not numbers are refused with their place.
func TestConvertRefusesNaN(t *testing.T) {
	m := readConfig(t, "oracles/qwen3_moe")
	m["num_hidden_layers"] = 1
	dir := filepath.Join(t.TempDir(), "nan")
	writeCheckpoint(t, dir, m, func(name string, values []float32) {
		if name == "model.layers.0.mlp.experts.3.up_proj.weight" {
			values[130] = float32(math.NaN())
		}
	})
	_, err := Convert(context.Background(), dir, filepath.Join(t.TempDir(), "out"), Options{}, nil)
	if err == nil || !strings.Contains(err.Error(), "experts.3.up_proj") || !strings.Contains(err.Error(), "weight 2 of row 1") {
		t.Errorf("%v", err)
	}
}

// sampledDisk calls each at every write.
type sampledDisk struct {
	killed
	each func()
}

func (d *sampledDisk) Write(f *os.File, b []byte, at int64) error {
	d.each()
	return d.realDisk.Write(f, b, at)
}
