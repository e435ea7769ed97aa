package container

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"testing"
)

func open(t *testing.T, dir string) *Container {
	t.Helper()
	c, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// Every reference checkpoint opens: nothing missing, nothing unused, every weight at the bytes that the header names.
func TestCheckpointsOpen(t *testing.T) {
	dirs, _ := filepath.Glob(filepath.Join(testdata, "oracles", "*"))
	if len(dirs) != 7 {
		t.Fatalf("%d checkpoints", len(dirs))
	}
	for _, dir := range dirs {
		dir = checkpointOnly(t, dir)
		c := open(t, dir)
		if len(c.Ignored) > 0 || len(c.Notes) > 0 {
			t.Errorf("%s: ignored %v, notes %v", dir, c.Ignored, c.Notes)
		}
		for name, dtype := range rawTensors(t, filepath.Join(dir, "model.safetensors")) {
			w, ok := c.Weight(name)
			if !ok || w.Encoding.Format != map[string]Format{"F32": F32, "BF16": BF16}[dtype.Dtype] || w.Data.Bytes != dtype.Offsets[1]-dtype.Offsets[0] {
				t.Errorf("%s: %s %+v", dir, name, w)
			}
		}
	}
}

// checkpointOnly links a test directory without its reference.safetensors, which holds no weights.
func checkpointOnly(t *testing.T, dir string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), filepath.Base(dir))
	if err := os.Mkdir(out, 0o755); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Name() == "reference.safetensors" || e.Name() == "reference.json" {
			continue
		}
		source, _ := filepath.Abs(filepath.Join(dir, e.Name()))
		if os.Link(source, filepath.Join(out, e.Name())) == nil {
			continue
		}
		text, err := os.ReadFile(source)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, e.Name()), text, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

type rawTensor struct {
	Dtype   string
	Shape   []int64
	Offsets []int64 `json:"data_offsets"`
	Data    []byte  `json:"-"`
}

// rawTensors reads a safetensors file the plain way, sharing nothing with the package.
func rawTensors(t *testing.T, path string) map[string]rawTensor {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(b)
	var head map[string]json.RawMessage
	if err := json.Unmarshal(b[8:8+n], &head); err != nil {
		t.Fatal(err)
	}
	out := map[string]rawTensor{}
	for name, text := range head {
		if name == "__metadata__" {
			continue
		}
		var r rawTensor
		if err := json.Unmarshal(text, &r); err != nil {
			t.Fatal(err)
		}
		r.Data = b[8+n:][r.Offsets[0]:r.Offsets[1]]
		out[name] = r
	}
	return out
}

// Every published container opens with the encodings its name says, and its weights decode to what an independent
// decoder makes of the bytes.
func TestPublishedContainers(t *testing.T) {
	for name, expert := range map[string]Encoding{
		"int8": {Format: Int8Row}, "int4-row": {Format: Int4Row}, "int2-row": {Format: Int2Row}, "int4-g64": {Int4Group, 64},
		"int4-g32": {Int4Group, 32}, "int3-g64": {Format: Int3Group64}, "fp8": {Format: FP8Block128},
	} {
		dir := checkpointOnly(t, filepath.Join(testdata, "containers", name))
		c := open(t, dir)
		e, err := c.Expert(1, 3)
		if err != nil {
			t.Fatal(err)
		}
		if e.Layout.Gate.Encoding != expert {
			t.Errorf("%s: gate is %s", name, e.Layout.Gate.Encoding)
		}
		if len(e.Reads) != 2 || len(e.Reads[0].Pieces) != 3 || len(e.Reads[1].Pieces) != 3 {
			t.Errorf("%s: reads %+v", name, e.Reads)
		}
		raw := rawTensors(t, filepath.Join(dir, "out-00000.safetensors"))
		slot := make([]byte, e.Layout.SlotBytes)
		if err := c.ReadExpert(&e, slot); err != nil {
			t.Fatal(err)
		}
		gate, up, down := e.Layout.Blocks(slot)
		for part, b := range map[string]*Block{"gate": &gate, "up": &up, "down": &down} {
			key := "model.layers.1.mlp.experts.3." + part + "_proj.weight"
			if !bytes.Equal(b.Data, raw[key].Data) || !bytes.Equal(bytesOf(b.Scales), raw[key+".qs"].Data) {
				t.Errorf("%s: %s differs from the file", name, key)
			}
			want := decodeByTheBook(expert, b.Rows, b.Columns, raw[key].Data, floats(append([]byte{}, raw[key+".qs"].Data...)))
			for i, v := range Dequantise(b) {
				if v != want[i] {
					t.Fatalf("%s: %s[%d] is %v, want %v", name, key, i, v, want[i])
				}
			}
		}
		if w, _ := c.Weight("lm_head.weight"); w.Encoding.Format != Int8Row {
			t.Errorf("%s: lm_head is %s", name, w.Encoding)
		}
	}
}

// decodeByTheBook is written from the format table alone, one weight at a time, with bit positions instead of nibbles.
func decodeByTheBook(e Encoding, rows, columns int, data []byte, scales []float32) []float32 {
	bit := func(i int) int { return int(data[i/8]) >> (i % 8) & 1 }
	number := func(first, n int) (v int) {
		for i := range n {
			v |= bit(first+i) << i
		}
		return v
	}
	ceil := func(a, b int) int { return (a + b - 1) / b }
	out := make([]float32, 0, rows*columns)
	for r := range rows {
		for k := range columns {
			var v float32
			switch e.Format {
			case Int8Row:
				v = float32(int8(number((r*columns+k)*8, 8))) * scales[r]
			case Int4Row:
				v = float32(number((r*ceil(columns, 2)*2+k)*4, 4)-8) * scales[r]
			case Int2Row:
				v = float32(number((r*ceil(columns, 4)*4+k)*2, 2)-2) * scales[r]
			case Int4Group:
				v = float32(number((r*ceil(columns, 2)*2+k)*4, 4)-8) * scales[r*ceil(columns, e.Group)+k/e.Group]
			case Int3Group64:
				group := r*ceil(columns, 64) + k/64
				v = float32(number(group*192+k%64*2, 2)+4*bit(group*192+128+k%64)-4) * scales[group]
			case FP8Block128:
				code := number((r*columns+k)*8, 8)
				x := math.Pow(2, float64(code>>3&15)-7) * (1 + float64(code&7)/8)
				if code>>3&15 == 0 {
					x = math.Pow(2, -6) * float64(code&7) / 8
				}
				if code >= 128 {
					x = -x
				}
				v = float32(x) * scales[r/128*ceil(columns, 128)+k/128]
			}
			out = append(out, v)
		}
	}
	return out
}
