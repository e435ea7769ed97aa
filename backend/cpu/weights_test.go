package cpu

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"colibri/backend/container"
)

// Weights for tests: random bits in every format, and a decoder written from the formats' description alone, in float64.

var allEncodings = []container.Encoding{
	{Format: container.F32}, {Format: container.BF16}, {Format: container.F16}, {Format: container.Int8Row}, {Format: container.Int4Row},
	{Format: container.Int2Row}, {Format: container.Int4Group, Group: 16}, {Format: container.Int4Group, Group: 32}, {Format: container.Int4Group, Group: 48},
	{Format: container.Int4Group, Group: 64}, {Format: container.Int4Group, Group: 80}, {Format: container.Int4Group, Group: 128},
	{Format: container.Int4Group, Group: 256}, {Format: container.Int3Group64}, {Format: container.FP8Block128},
}

// newRandom seeds from the test's name, or from COLIBRI_SEED, and logs the seed.
func newRandom(t testing.TB) *rand.Rand {
	seed := uint64(14695981039346656037)
	for _, c := range t.Name() {
		seed = (seed ^ uint64(c)) * 1099511628211
	}
	if s, err := strconv.ParseUint(os.Getenv("COLIBRI_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

func normals(r *rand.Rand, n int, deviation float64) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64() * deviation)
	}
	return x
}

// randomBlock fills a weight with numbers of about the given size. The bits of packed formats are uniform; unused ones too.
func randomBlock(r *rand.Rand, e container.Encoding, rows, columns int, size float64) container.Block {
	b := container.Block{Encoding: e, Rows: rows, Columns: columns}
	words := make([]uint32, (e.DataBytes(rows, columns)+3)/4)
	b.Data = unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), e.DataBytes(rows, columns))
	if n := e.ScaleCount(rows, columns); n > 0 {
		b.Scales = make([]float32, n)
	}
	half := map[container.Format]float64{container.Int8Row: 74, container.Int4Row: 4.6, container.Int4Group: 4.6, container.Int3Group64: 2.3,
		container.Int2Row: 1.1, container.FP8Block128: 90}[e.Format]
	for i := range b.Scales {
		b.Scales[i] = float32(size / half * (0.5 + r.Float64()))
		if r.IntN(8) == 0 {
			b.Scales[i] = -b.Scales[i]
		}
	}
	for i := range b.Data {
		b.Data[i] = byte(r.Uint32())
		if e.Format == container.FP8Block128 && b.Data[i]&0x7f == 0x7f {
			b.Data[i] ^= 1 // NaN
		}
	}
	for i := 0; i < rows*columns; i++ {
		x := r.NormFloat64() * size
		switch e.Format {
		case container.F32:
			binary.LittleEndian.PutUint32(b.Data[4*i:], math.Float32bits(float32(x)))
		case container.BF16:
			binary.LittleEndian.PutUint16(b.Data[2*i:], uint16(math.Float32bits(float32(x))>>16))
		case container.F16:
			// sign, exponents of 2^-14 … 2^0 and, now and then, a subnormal
			h := uint16(r.Uint32()) & 0x83ff
			if r.IntN(10) > 0 {
				h |= uint16(8+r.IntN(6)) << 10
			}
			binary.LittleEndian.PutUint16(b.Data[2*i:], h)
		}
	}
	return b
}

// decode gives the weight's numbers.
func decode(b *container.Block) []float64 {
	out := make([]float64, b.Rows*b.Columns)
	for r := 0; r < b.Rows; r++ {
		for c := 0; c < b.Columns; c++ {
			out[r*b.Columns+c] = element(b, r, c)
		}
	}
	return out
}

func element(b *container.Block, r, c int) float64 {
	i := r*b.Columns + c
	groups := func(size int) int { return (b.Columns + size - 1) / size }
	switch b.Format {
	case container.F32:
		return float64(math.Float32frombits(binary.LittleEndian.Uint32(b.Data[4*i:])))
	case container.BF16:
		return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b.Data[2*i:])) << 16))
	case container.F16:
		h := binary.LittleEndian.Uint16(b.Data[2*i:])
		sign, exponent, mantissa := 1-2*float64(h>>15), int(h>>10&31), float64(h&1023)
		if exponent == 0 {
			return sign * mantissa * math.Pow(2, -24)
		}
		return sign * (1 + mantissa/1024) * math.Pow(2, float64(exponent-15))
	case container.Int8Row:
		return float64(int8(b.Data[i])) * float64(b.Scales[r])
	case container.Int4Row, container.Int4Group:
		q := b.Data[r*((b.Columns+1)/2)+c/2]
		if c%2 == 1 {
			q >>= 4
		}
		scale := r
		if b.Format == container.Int4Group {
			scale = r*groups(b.Group) + c/b.Group
		}
		return float64(int(q&15)-8) * float64(b.Scales[scale])
	case container.Int2Row:
		q := b.Data[r*((b.Columns+3)/4)+c/4] >> (2 * (c % 4)) & 3
		return float64(int(q)-2) * float64(b.Scales[r])
	case container.Int3Group64:
		g := b.Data[(r*groups(64)+c/64)*24:]
		k := c % 64
		q := g[k/4]>>(2*(k%4))&3 | g[16+k/8]>>(k%8)&1<<2
		return float64(int(q)-4) * float64(b.Scales[r*groups(64)+c/64])
	case container.FP8Block128:
		q := b.Data[i]
		sign, exponent, mantissa := 1-2*float64(q>>7), int(q>>3&15), float64(q&7)
		value := mantissa / 8 * math.Pow(2, -6)
		if exponent > 0 {
			value = (1 + mantissa/8) * math.Pow(2, float64(exponent-7))
		}
		return sign * value * float64(b.Scales[r/128*groups(128)+c/128])
	}
	panic("no decoder for " + b.Encoding.String())
}

// multiply is y = W·x in float64, and for each output the sum of the magnitudes, which bounds what rounding can do.
func multiply(w []float64, rows, columns int, x []float32) (y, magnitude []float64) {
	y, magnitude = make([]float64, rows), make([]float64, rows)
	for r := range rows {
		for c := range columns {
			p := w[r*columns+c] * float64(x[c])
			y[r] += p
			magnitude[r] += math.Abs(p)
		}
	}
	return y, magnitude
}

// variants are the instruction sets that this machine can run.
func variants(t testing.TB) []string {
	var out []string
	for _, v := range []string{"portable", "avx2", "avx512", "neon"} {
		if b, err := newVariant(1, v); err == nil {
			out = append(out, v)
			_ = b.Close()
		}
	}
	t.Logf("instruction sets of this machine: %v", out)
	return out
}

func open(t testing.TB, threads int, variant string) *Backend {
	b, err := newVariant(threads, variant)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}
