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
		if err := finite(weights[first*columns:last*columns], first, columns); err != nil {
			return err
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

// finite refuses infinities and NaN; first is the number of the first row.
func finite(weights []float32, first, columns int) error {
	if largestBits(weights) < infinityBits {
		return nil
	}
	for i, w := range weights {
		if w-w != 0 {
			return fmt.Errorf("weight %d of row %d is %v; the file is damaged, download it again", i%columns, first+i/columns, w)
		}
	}
	return nil
}

// quantiseGroup packs the weights of one scale; at is their first column. Nothing is clamped: a weight over its
// group's scale cannot round to more than the format's largest number.
func quantiseGroup(f Format, w []float32, data []byte, at int) (scale float32) {
	scale = max(absoluteMax(w)/f.largest(), smallestScale)
	switch f {
	case Int8Row:
		for i, v := range w {
			data[at+i] = byte(round(v / scale))
		}
	case Int4Row, Int4Group:
		data = data[at/2:]
		for i := 1; i < len(w); i += 2 {
			data[i/2] = byte(round(w[i-1]/scale)+8) | byte(round(w[i]/scale)+8)<<4
		}
		if n := len(w); n%2 == 1 {
			data[n/2] = byte(round(w[n-1]/scale) + 8)
		}
	case Int2Row:
		for i, v := range w {
			data[(at+i)/4] |= byte(round(v/scale)+2) << ((at + i) % 4 * 2)
		}
	case Int3Group64:
		group := data[at/64*24 : at/64*24+24]
		for k, v := range w {
			q := byte(round(v/scale) + 4)
			group[k/4] |= q & 3 << (k % 4 * 2)
			group[16+k/8] |= q >> 2 << (k % 8)
		}
	}
	return scale
}

// round gives the nearest whole number, ties to even, for magnitudes below 2^22: adding 1.5·2^23 leaves no room for a
// fraction, and the processor rounds. (math.RoundToEven takes most of the time of a conversion.)
func round(x float32) int32 {
	return int32(math.Float32bits(x+12582912)) - 0x4B400000
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

// infinityBits is float32's infinity; NaNs are larger.
const infinityBits = 0x7F800000

// largestBits is the largest magnitude, as bits: they compare like the numbers, and faster.
func largestBits(w []float32) (largest uint32) {
	for _, v := range w {
		largest = max(largest, math.Float32bits(v)&0x7FFFFFFF)
	}
	return largest
}

func absoluteMax(w []float32) float32 { return math.Float32frombits(largestBits(w)) }

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
		dequantiseGroup(e.Format, data, g*width, scale, out[g*width:min((g+1)*width, len(out))])
	}
}

// dequantiseGroup unpacks the weights of one scale; at is their first column.
func dequantiseGroup(f Format, data []byte, at int, scale float32, out []float32) {
	switch f {
	case Int8Row:
		for i, b := range data[at : at+len(out)] {
			out[i] = scale * float32(int8(b))
		}
	case FP8Block128:
		for i, b := range data[at : at+len(out)] {
			out[i] = scale * e4m3[b]
		}
	case Int4Row, Int4Group:
		data = data[at/2:]
		for i := 1; i < len(out); i += 2 {
			b := data[i/2]
			out[i-1] = scale * float32(int32(b&15)-8)
			out[i] = scale * float32(int32(b>>4)-8)
		}
		if n := len(out); n%2 == 1 {
			out[n-1] = scale * float32(int32(data[n/2]&15)-8)
		}
	case Int2Row:
		for i := range out {
			out[i] = scale * float32(int32(data[(at+i)/4]>>((at+i)%4*2)&3)-2)
		}
	case Int3Group64:
		group := data[at/64*24 : at/64*24+24]
		for k := range out {
			low, high := group[k/4]>>(k%4*2)&3, group[16+k/8]>>(k%8)&1
			out[k] = scale * float32(int32(low|high<<2)-4)
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
