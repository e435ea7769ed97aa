package container

import (
	"encoding/binary"
	"fmt"
	"math"
	"runtime"
	"sync"
)

// smallestScale keeps scales of groups of zeros from dividing by zero; published converters use the same.
const smallestScale = 1e-8

// Quantise packs rows×columns weights. Integer formats are symmetric: the scale of a group is its largest magnitude over the
// format's largest value, and weights are rounded to the nearest multiple, ties to even. Weights that are
// not finite are refused, with their place.
func Quantise(e Encoding, rows, columns int, weights []float32) (data []byte, scales []float32, err error) {
	if rows < 1 || columns < 1 || len(weights) != rows*columns {
		return nil, nil, fmt.Errorf("%d weights are not %d rows of %d", len(weights), rows, columns)
	}
	data = make([]byte, e.DataBytes(rows, columns))
	scales = make([]float32, e.ScaleCount(rows, columns))
	step := 1
	if e.Format == FP8Block128 {
		step = Block128
	}
	rowBytes, perRow := int(e.DataBytes(1, columns)), int(e.ScaleCount(1, columns))
	errs := parallel((rows+step-1)/step, func(band int) error {
		first, last := band*step, min((band+1)*step, rows)
		for i, w := range weights[first*columns : last*columns] {
			if w-w != 0 {
				return fmt.Errorf("weight %d of row %d is %v; the file is damaged, download it again", i%columns, first+i/columns, w)
			}
		}
		return quantiseBand(e, columns, weights[first*columns:last*columns], data[first*rowBytes:last*rowBytes], scales[band*perRow:band*perRow+perRow])
	})
	return data, scales, errs
}

// quantiseBand packs what shares scales: one row, or up to 128 rows of fp8 tiles.
func quantiseBand(e Encoding, columns int, w []float32, data []byte, scales []float32) error {
	switch e.Format {
	case F32:
		copy(data, bytesOf(w))
	case BF16:
		for i, v := range w {
			binary.LittleEndian.PutUint16(data[2*i:], toBF16(v))
		}
	case F16:
		for i, v := range w {
			h := toF16(v)
			if h&0x7FFF == 0x7C00 {
				return fmt.Errorf("weight %v is too large for f16; choose bf16 or f32", v)
			}
			binary.LittleEndian.PutUint16(data[2*i:], h)
		}
	case FP8Block128:
		quantiseTiles(columns, w, data, scales)
	default:
		width := e.groupWidth(columns)
		for g := range scales {
			scales[g] = quantiseGroup(e.Format, w[g*width:min((g+1)*width, columns)], data, g*width)
		}
	}
	return nil
}

// quantiseGroup packs the weights of one scale; at is their first column.
func quantiseGroup(f Format, w []float32, data []byte, at int) (scale float32) {
	largest := f.largest()
	scale = max(absoluteMax(w)/largest, smallestScale)
	for i, v := range w {
		q := int(math.RoundToEven(float64(v / scale)))
		q = min(max(q, int(-largest)-1), int(largest))
		k := at + i
		switch f {
		case Int8Row:
			data[k] = byte(int8(q))
		case Int4Row, Int4Group:
			data[k/2] |= byte(q+8) << (k % 2 * 4)
		case Int2Row:
			data[k/4] |= byte(q+2) << (k % 4 * 2)
		case Int3Group64:
			group, k := data[k/64*24:k/64*24+24], k%64
			group[k/4] |= byte((q+4)&3) << (k % 4 * 2)
			group[16+k/8] |= byte((q+4)>>2) << (k % 8)
		}
	}
	return scale
}

func quantiseTiles(columns int, w []float32, data []byte, scales []float32) {
	rows := len(w) / columns
	for t := range scales {
		first, last := t*Block128, min((t+1)*Block128, columns)
		var largest float32
		for r := range rows {
			largest = max(largest, absoluteMax(w[r*columns+first:r*columns+last]))
		}
		scale := max(largest/maxE4M3, smallestScale)
		scales[t] = scale
		for r := range rows {
			for i := r*columns + first; i < r*columns+last; i++ {
				data[i] = toE4M3(w[i] / scale)
			}
		}
	}
}

func absoluteMax(w []float32) (largest float32) {
	for _, v := range w {
		largest = max(largest, v, -v)
	}
	return largest
}

// Dequantise gives a block's weights as float32, row by row.
func Dequantise(b *Block) []float32 {
	out := make([]float32, b.Rows*b.Columns)
	DequantiseRows(b, 0, b.Rows, out)
	return out
}

// DequantiseRows writes the weights of rows first to last−1 to out.
func DequantiseRows(b *Block, first, last int, out []float32) {
	rowBytes, perRow := int(b.DataBytes(1, b.Columns)), int(b.ScaleCount(1, b.Columns))
	parallel(last-first, func(i int) error {
		r := first + i
		band := r
		if b.Format == FP8Block128 {
			band = r / Block128
		}
		dequantiseRow(b.Encoding, b.Data[r*rowBytes:(r+1)*rowBytes], b.Scales[band*perRow:(band+1)*perRow], out[i*b.Columns:(i+1)*b.Columns])
		return nil
	})
}

// dequantiseRow unpacks one row; scales are the row's own.
func dequantiseRow(e Encoding, data []byte, scales, out []float32) {
	switch e.Format {
	case F32:
		for i := range out {
			out[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
		return
	case BF16:
		for i := range out {
			out[i] = fromBF16(binary.LittleEndian.Uint16(data[2*i:]))
		}
		return
	case F16:
		for i := range out {
			out[i] = fromF16(binary.LittleEndian.Uint16(data[2*i:]))
		}
		return
	}
	width := e.groupWidth(len(out))
	for g, scale := range scales {
		for k := g * width; k < min((g+1)*width, len(out)); k++ {
			var q float32
			switch e.Format {
			case Int8Row:
				q = float32(int8(data[k]))
			case Int4Row, Int4Group:
				q = float32(int(data[k/2]>>(k%2*4)&15) - 8)
			case Int2Row:
				q = float32(int(data[k/4]>>(k%4*2)&3) - 2)
			case Int3Group64:
				group, k := data[k/64*24:k/64*24+24], k%64
				low, high := group[k/4]>>(k%4*2)&3, group[16+k/8]>>(k%8)&1
				q = float32(int(low|high<<2) - 4)
			case FP8Block128:
				q = e4m3[data[k]]
			}
			out[k] = scale * q
		}
	}
}

// parallel calls work for 0 … n−1 on all processors and returns the error of the lowest index, so that the same
// damaged file gives the same message every time.
func parallel(n int, work func(i int) error) error {
	workers := min(runtime.GOMAXPROCS(0), n)
	if workers <= 1 {
		for i := range n {
			if err := work(i); err != nil {
				return err
			}
		}
		return nil
	}
	errs := make([]error, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			for i := w * n / workers; i < (w+1)*n/workers && errs[w] == nil; i++ {
				errs[w] = work(i)
			}
		})
	}
	group.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
