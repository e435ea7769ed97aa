//go:build (darwin && cgo) || metalsim

package metal

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"colibri/backend/container"
)

const page = container.ExpertAlignment

// arena is registered memory that tests take weights and activations from.
type arena struct {
	t     testing.TB
	b     *Backend
	whole []byte
	used  int
}

// mapMemory gives anonymous memory whose address and length are multiples of 16 KiB.
func mapMemory(t testing.TB, bytes int) []byte {
	t.Helper()
	bytes = (bytes + page - 1) / page * page
	whole, err := unix.Mmap(-1, 0, bytes+page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(whole) })
	skip := (page - int(uintptr(unsafe.Pointer(&whole[0]))%page)) % page
	return whole[skip : skip+bytes : skip+bytes]
}

func newArena(t testing.TB, b *Backend, bytes int) *arena {
	t.Helper()
	a := &arena{t: t, b: b, whole: mapMemory(t, bytes)}
	if err := b.Register(a.whole); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // before the memory goes
		if err := b.Unregister(a.whole); err != nil {
			t.Error(err)
		}
	})
	return a
}

// bytes takes n bytes at a multiple of align, plus shift.
func (a *arena) bytes(n, align, shift int) []byte {
	a.t.Helper()
	at := (a.used+align-1)/align*align + shift
	if at+n > len(a.whole) {
		a.t.Fatalf("the test's arena of %d bytes is too small", len(a.whole))
	}
	a.used = at + n
	return a.whole[at : at+n : at+n]
}

func (a *arena) floats(n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&a.bytes(4*n, 16, 0)[0])), n)
}

func (a *arena) copy(x []float32) []float32 {
	y := a.floats(len(x))
	copy(y, x)
	return y
}

// random fills n numbers around zero.
func (a *arena) random(rng *rand.Rand, n int) []float32 {
	x := a.floats(n)
	for i := range x {
		x[i] = rng.Float32()*2 - 1
	}
	return x
}

func newRand(t testing.TB) *rand.Rand {
	seed := uint64(20260105)
	if text := os.Getenv("COLIBRI_TEST_SEED"); text != "" {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seed = n
	}
	t.Logf("seed %d (COLIBRI_TEST_SEED)", seed)
	return rand.New(rand.NewPCG(seed, 1))
}

// ---- weights and what they mean, written from the formats' descriptions, for comparison with the kernels

var encodings = []container.Encoding{
	{Format: container.F32}, {Format: container.BF16}, {Format: container.F16}, {Format: container.Int8Row}, {Format: container.Int4Row}, {Format: container.Int2Row},
	{Format: container.Int4Group, Group: 64}, {Format: container.Int4Group, Group: 32}, {Format: container.Int4Group, Group: 48},
	{Format: container.Int3Group64}, {Format: container.FP8Block128},
}

// randomWeight makes a weight of random bytes: every code of a format occurs.
func (a *arena) randomWeight(rng *rand.Rand, e container.Encoding, rows, columns int) container.Block {
	return a.randomWeightAt(rng, e, rows, columns, 0)
}

func (a *arena) randomWeightAt(rng *rand.Rand, e container.Encoding, rows, columns, shift int) container.Block {
	w := container.Block{Encoding: e, Rows: rows, Columns: columns, Data: a.bytes(int(e.DataBytes(rows, columns)), 16, shift)}
	if n := e.ScaleCount(rows, columns); n > 0 {
		w.Scales = a.floats(int(n))
		for i := range w.Scales {
			w.Scales[i] = (0.5 + rng.Float32()) / 64
		}
	}
	switch e.Format {
	case container.F32:
		f := unsafe.Slice((*float32)(unsafe.Pointer(&w.Data[0])), rows*columns)
		for i := range f {
			f[i] = rng.Float32()*2 - 1
		}
	case container.BF16, container.F16:
		for i := 0; i < len(w.Data); i += 2 {
			// any sign and mantissa, exponents around one
			bits := uint16(rng.Uint32())
			if e.Format == container.BF16 {
				bits = bits&0x807F | uint16(120+rng.IntN(8))<<7
			} else {
				bits = bits&0x83FF | uint16(8+rng.IntN(8))<<10
				if rng.IntN(50) == 0 {
					bits &= 0x83FF // denormal
				}
			}
			w.Data[i], w.Data[i+1] = byte(bits), byte(bits>>8)
		}
	default:
		for i := range w.Data {
			w.Data[i] = byte(rng.Uint32())
			if e.Format == container.FP8Block128 && w.Data[i]&0x7F == 0x7F {
				w.Data[i] ^= 1
			}
		}
	}
	return w
}

func halfValue(bits uint16) float64 {
	sign := 1.0
	if bits&0x8000 != 0 {
		sign = -1
	}
	exponent, mantissa := int(bits>>10)&31, float64(bits&1023)
	switch exponent {
	case 0:
		return sign * mantissa * 0x1p-24
	case 31:
		return math.NaN()
	}
	return sign * (1 + mantissa/1024) * math.Ldexp(1, exponent-15)
}

func fp8Value(bits byte) float64 {
	sign := 1.0
	if bits&0x80 != 0 {
		sign = -1
	}
	exponent, mantissa := int(bits>>3)&15, float64(bits&7)
	switch {
	case bits&0x7F == 0x7F:
		return math.NaN()
	case exponent == 0:
		return sign * mantissa / 8 * 0x1p-6
	}
	return sign * (1 + mantissa/8) * math.Ldexp(1, exponent-7)
}

// value is the weight in a row and a column.
func value(w *container.Block, row, column int) float64 {
	e, data, columns := w.Encoding, w.Data, w.Columns
	switch e.Format {
	case container.F32:
		at := 4 * (row*columns + column)
		return float64(math.Float32frombits(uint32(data[at]) | uint32(data[at+1])<<8 | uint32(data[at+2])<<16 | uint32(data[at+3])<<24))
	case container.BF16:
		at := 2 * (row*columns + column)
		return float64(math.Float32frombits(uint32(data[at])<<16 | uint32(data[at+1])<<24))
	case container.F16:
		at := 2 * (row*columns + column)
		return halfValue(uint16(data[at]) | uint16(data[at+1])<<8)
	case container.Int8Row:
		return float64(int8(data[row*columns+column])) * float64(w.Scales[row])
	case container.Int4Row, container.Int4Group:
		nibble := data[row*((columns+1)/2)+column/2]
		if column%2 == 1 {
			nibble >>= 4
		}
		scale := row
		if e.Format == container.Int4Group {
			scale = row*((columns+e.Group-1)/e.Group) + column/e.Group
		}
		return (float64(nibble&15) - 8) * float64(w.Scales[scale])
	case container.Int2Row:
		bits := data[row*((columns+3)/4)+column/4] >> (2 * (column % 4))
		return (float64(bits&3) - 2) * float64(w.Scales[row])
	case container.Int3Group64:
		groups := (columns + 63) / 64
		group, k := data[(row*groups+column/64)*24:], column%64
		low := group[k/4] >> (2 * (k % 4)) & 3
		high := group[16+k/8] >> (k % 8) & 1
		return (float64(low|high<<2) - 4) * float64(w.Scales[row*groups+column/64])
	case container.FP8Block128:
		return fp8Value(data[row*columns+column]) * float64(w.Scales[row/128*((columns+127)/128)+column/128])
	}
	panic(fmt.Sprint("no reference for ", e))
}

// row expands one row of a weight.
func row(w *container.Block, r int) []float64 {
	out := make([]float64, w.Columns)
	for c := range out {
		out[c] = value(w, r, c)
	}
	return out
}

// product is W·x for every row of x, in double precision.
func product(w *container.Block, x []float64) []float64 {
	rows := len(x) / w.Columns
	y := make([]float64, rows*w.Rows)
	for o := range w.Rows {
		weights := row(w, o)
		for r := range rows {
			sum := 0.0
			for c, v := range x[r*w.Columns : (r+1)*w.Columns] {
				sum += weights[c] * v
			}
			y[r*w.Rows+o] = sum
		}
	}
	return y
}

func doubles(x []float32) []float64 {
	y := make([]float64, len(x))
	for i, v := range x {
		y[i] = float64(v)
	}
	return y
}

// closeTo compares by max|Δ| / max|reference|, the measure of the whole project.
func closeTo(t testing.TB, what string, got []float32, want []float64, limit float64) {
	t.Helper()
	if len(got) < len(want) {
		t.Fatalf("%s: %d numbers, %d expected", what, len(got), len(want))
	}
	worst, at, size := 0.0, 0, 0.0
	for i, v := range want {
		size = max(size, math.Abs(v))
		if d := math.Abs(float64(got[i]) - v); d > worst || d != d {
			worst, at = d, i
		}
	}
	if size == 0 {
		size = 1
	}
	if worst != worst || worst/size > limit {
		t.Fatalf("%s: number %d of %d is %g, %g expected: %.2g of the largest, at most %.0e allowed", what, at, len(want), got[at], want[at], worst/size, limit)
	}
}

func newQuietRand(a, b uint64) *rand.Rand { return rand.New(rand.NewPCG(a, b)) }

// long keeps a test that takes up to half a minute of a processor out of everyday runs; instead names what covers the same in small.
func long(t testing.TB, instead string) {
	t.Helper()
	if os.Getenv("COLIBRI_METAL_LONG") == "" {
		t.Skipf("not run: it takes up to half a minute; COLIBRI_METAL_LONG=1 runs it, %s covers small shapes", instead)
	}
}
