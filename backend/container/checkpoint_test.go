package container

import (
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// tensorData is a tensor of a file that a test writes.
type tensorData struct {
	name, dtype string
	shape       []int64
	data        []byte
}

// writeSafetensors writes a file the plain way, sharing nothing with the package.
func writeSafetensors(t testing.TB, path string, metadata map[string]string, tensors []tensorData) {
	t.Helper()
	head := map[string]any{}
	if metadata != nil {
		head["__metadata__"] = metadata
	}
	var data []byte
	for _, x := range tensors {
		shape := x.shape
		if shape == nil {
			shape = []int64{int64(len(x.data)) / int64(dtypeBits[x.dtype]/8)}
		}
		head[x.name] = map[string]any{"dtype": x.dtype, "shape": shape, "data_offsets": []int{len(data), len(data) + len(x.data)}}
		data = append(data, x.data...)
	}
	text, err := json.Marshal(head)
	if err != nil {
		t.Fatal(err)
	}
	file := binary.LittleEndian.AppendUint64(nil, uint64(len(text)))
	if err := os.WriteFile(path, append(append(file, text...), data...), 0o644); err != nil {
		t.Fatal(err)
	}
}

// writeCheckpoint writes a random bf16 checkpoint for a configuration. edit may change values.
func writeCheckpoint(t testing.TB, dir string, config map[string]any, edit func(name string, values []float32)) *Config {
	t.Helper()
	text, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := ParseConfig(text, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var tensors []tensorData
	add := func(s tensorSpec) {
		values := make([]float32, s.rows*s.columns)
		for i := range values {
			values[i] = float32(random.NormFloat64() * 0.05)
		}
		if edit != nil {
			edit(s.name, values)
		}
		data := make([]byte, 0, 2*len(values))
		for _, v := range values {
			data = binary.LittleEndian.AppendUint16(data, toBF16(v))
		}
		shape := []int64{int64(s.rows), int64(s.columns)}
		if s.vector {
			shape = shape[1:]
		}
		tensors = append(tensors, tensorData{s.name, "BF16", shape, data})
	}
	c.resident(add)
	for layer, sparse := range c.Sparse {
		for e := 0; sparse && e < c.MoE.Experts; e++ {
			for i, part := range expertParts {
				rows, columns := c.expertShape(i)
				add(tensorSpec{name: expertPrefix(layer, e) + "." + part + ".weight", rows: rows, columns: columns})
			}
		}
	}
	writeSafetensors(t, filepath.Join(dir, "model.safetensors"), nil, tensors)
	return c
}
