package residency

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"testing"

	"colibri/backend/container"
)

// testContainer is a generated container whose expert bytes are known: word i of expert e of layer l is a hash of the three, and
// every matrix carries its own CRC-32 in its last four data bytes.
type testContainer struct {
	Source
	records map[int]container.Expert // by layer·1000+expert
	blocks  map[int][3][]byte        // data of gate, up, down
	files   int
}

// testShape describes what to generate.
type testShape struct {
	layers, experts int
	published       bool // unaligned: weights in one place, scales in another, as published containers have them
	wideLayer       int  // this layer's experts are twice as large (0: none; layer 0 is dense)
	files           int
}

func generate(t testing.TB, shape testShape) *testContainer {
	t.Helper()
	dir := t.TempDir()
	c := &testContainer{records: map[int]container.Expert{}, blocks: map[int][3][]byte{}, files: max(shape.files, 1)}
	contents := make([][]byte, c.files)
	c.Counts = make([]int, shape.layers)
	for layer := 1; layer < shape.layers; layer++ { // layer 0 is dense
		c.Counts[layer] = shape.experts
		for e := range shape.experts {
			file := (layer + e) % c.files
			contents[file] = c.add(contents[file], shape, layer, e, file)
		}
	}
	for i, content := range contents {
		path := filepath.Join(dir, fmt.Sprintf("experts-%d", i))
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		c.Files = append(c.Files, path)
	}
	c.Expert = func(layer, index int) (container.Expert, error) {
		e, ok := c.records[layer*1000+index]
		if !ok {
			return e, fmt.Errorf("no expert %d in layer %d", index, layer)
		}
		return e, nil
	}
	return c
}

const testRows = 8

func (c *testContainer) add(file []byte, shape testShape, layer, expert, fileIndex int) []byte {
	columns := 1000 // 8 kB a matrix: a slot of 32 KiB
	if layer == shape.wideLayer {
		columns = 2000
	}
	data := int64(testRows * columns)
	scales := int64(testRows * 4)
	var l container.ExpertLayout
	place := func(at int64) (container.Placement, int64) {
		p := container.Placement{Encoding: container.Encoding{Format: container.Int8Row}, Rows: testRows, Columns: columns,
			DataOffset: at, DataBytes: data, ScaleBytes: scales}
		p.ScaleOffset = (at + data + 15) &^ 15
		return p, (p.ScaleOffset + scales + 15) &^ 15
	}
	var at int64
	l.Gate, at = place(0)
	l.Up, at = place(at)
	l.Down, at = place(at)
	l.SlotBytes = (at + container.ExpertAlignment - 1) &^ (container.ExpertAlignment - 1)
	slot := make([]byte, l.SlotBytes)
	var blocks [3][]byte
	for m, p := range []container.Placement{l.Gate, l.Up, l.Down} {
		d := slot[p.DataOffset : p.DataOffset+p.DataBytes]
		seed := sha256.Sum256([]byte{byte(layer), byte(expert), byte(expert >> 8), byte(m)})
		for i := range d {
			d[i] = seed[i%32] ^ byte(i>>5)
		}
		binary.LittleEndian.PutUint32(d[len(d)-4:], crc32.ChecksumIEEE(d[:len(d)-4]))
		blocks[m] = d
		for r := range testRows {
			binary.LittleEndian.PutUint32(slot[p.ScaleOffset+int64(4*r):], math.Float32bits(float32(layer*1000+expert*10+m)))
		}
	}
	record := container.Expert{Layer: layer, Index: expert, Layout: l}
	if shape.published {
		// 41 odd bytes of header, then down, gate, up; scales elsewhere, in the same order.
		file = append(file, make([]byte, 41)...)
		weights := container.Read{File: fileIndex, Offset: int64(len(file))}
		for _, p := range []container.Placement{l.Down, l.Gate, l.Up} {
			weights.Pieces = append(weights.Pieces, container.Piece{From: weights.Bytes, To: p.DataOffset, Bytes: p.DataBytes})
			file = append(file, slot[p.DataOffset:p.DataOffset+p.DataBytes]...)
			weights.Bytes += p.DataBytes
		}
		file = append(file, make([]byte, 17)...)
		rest := container.Read{File: fileIndex, Offset: int64(len(file))}
		for _, p := range []container.Placement{l.Down, l.Gate, l.Up} {
			rest.Pieces = append(rest.Pieces, container.Piece{From: rest.Bytes, To: p.ScaleOffset, Bytes: p.ScaleBytes})
			file = append(file, slot[p.ScaleOffset:p.ScaleOffset+p.ScaleBytes]...)
			rest.Bytes += p.ScaleBytes
		}
		record.Reads = []container.Read{weights, rest}
	} else {
		record.Reads = []container.Read{{File: fileIndex, Offset: int64(len(file)), Bytes: l.SlotBytes}}
		record.Sum, record.HasSum = crc32.Checksum(slot, castagnoli), true
		file = append(file, slot...)
	}
	c.records[layer*1000+expert], c.blocks[layer*1000+expert] = record, blocks
	return file
}

// recordBytes is what reading an expert costs.
func (c *testContainer) recordBytes(layer, expert int) int64 {
	var n int64
	for _, r := range c.records[layer*1000+expert].Reads {
		n += r.Bytes
	}
	return n
}

// verify says what is wrong with a lease's bytes.
func (c *testContainer) verify(layer int, lease Lease) error {
	for m, b := range []container.Block{lease.Gate, lease.Up, lease.Down} {
		d := b.Data
		if len(d) < 4 || binary.LittleEndian.Uint32(d[len(d)-4:]) != crc32.ChecksumIEEE(d[:len(d)-4]) {
			return fmt.Errorf("layer %d expert %d matrix %d: checksum", layer, lease.Expert, m)
		}
		if string(d) != string(c.blocks[layer*1000+int(lease.Expert)][m]) {
			return fmt.Errorf("layer %d expert %d matrix %d holds another expert's bytes", layer, lease.Expert, m)
		}
		for _, s := range b.Scales {
			if s != float32(layer*1000+int(lease.Expert)*10+m) {
				return fmt.Errorf("layer %d expert %d matrix %d: scale %v", layer, lease.Expert, m, s)
			}
		}
		if len(b.Scales) != testRows {
			return fmt.Errorf("layer %d expert %d matrix %d: %d scales", layer, lease.Expert, m, len(b.Scales))
		}
	}
	return nil
}

const testSlotBytes = 32 << 10 // of a layer that is not wide
