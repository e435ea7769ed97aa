package container

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

var everyEncoding = []Encoding{{Format: F32}, {Format: BF16}, {Format: F16}, {Format: Int8Row}, {Format: Int4Row}, {Format: Int2Row},
	{Int4Group, 16}, {Int4Group, 48}, {Int4Group, 64}, {Int4Group, 128}, {Format: Int3Group64}, {Format: FP8Block128}}

// Odd sizes round-trip: rows begin on bytes, last groups and tiles are short. Each number is the nearest that its scale offers, as
// told by the independent decoder.
func TestQuantiseOddSizes(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	for _, e := range everyEncoding {
		for _, s := range []shape{{1, 1}, {3, 5}, {2, 63}, {129, 65}, {130, 257}, {1, 128}, {5, 192}} {
			w := make([]float32, s.rows*s.columns)
			for i := range w {
				w[i] = float32(random.NormFloat64() * math.Pow(10, float64(i%5)-2))
			}
			data, scales, err := Quantise(e, s.rows, s.columns, w)
			if err != nil {
				t.Fatal(err)
			}
			if int64(len(data)) != e.DataBytes(s.rows, s.columns) || int64(len(scales)) != e.ScaleCount(s.rows, s.columns) {
				t.Fatalf("%s %v: %d bytes, %d scales", e, s, len(data), len(scales))
			}
			b := &Block{Encoding: e, Rows: s.rows, Columns: s.columns, Data: data, Scales: scales}
			back := decode(b)
			if !slices.Equal(back, Dequantise(b)) {
				t.Fatalf("%s %v: decoders differ", e, s)
			}
			for i, v := range back {
				if e.Format.IsFloat() {
					bits := map[Format]float64{F32: 24, BF16: 8, F16: 11}[e.Format]
					if math.Abs(float64(v-w[i])) > math.Abs(float64(w[i]))*math.Pow(2, -bits)+3e-8 {
						t.Fatalf("%s %v: [%d] %v became %v", e, s, i, w[i], v)
					}
					continue
				}
				checkNearest(t, e, s, i, w[i], v, scales)
			}
		}
	}
}

// checkNearest: no other number of the format is nearer to the weight, but for float32's own rounding.
func checkNearest(t *testing.T, e Encoding, s shape, i int, w, got float32, scales []float32) {
	t.Helper()
	r, k := i/s.columns, i%s.columns
	perRow := int(e.ScaleCount(1, s.columns))
	band, best := r, math.Inf(1)
	if e.Format == FP8Block128 {
		band = r / 128
	}
	scale := scales[band*perRow+k/e.groupWidth(s.columns)]
	if e.Format == FP8Block128 {
		for code := range 256 {
			if code&0x7F != 0x7F {
				best = min(best, math.Abs(float64(w)-float64(e4m3[code])*float64(scale)))
			}
		}
	} else {
		largest := int(e.Format.largest())
		for q := -largest - 1; q <= largest; q++ {
			best = min(best, math.Abs(float64(w)-float64(q)*float64(scale)))
		}
	}
	if d := math.Abs(float64(w) - float64(got)); d > best*(1+1e-5)+1e-6*math.Abs(float64(w)) {
		t.Fatalf("%s %v: [%d, %d] %v became %v (off by %v, best %v)", e, s, r, k, w, got, d, best)
	}
}

func TestQuantiseEdges(t *testing.T) {
	for _, e := range everyEncoding {
		zeros, scales, err := Quantise(e, 2, 70, make([]float32, 140))
		if err != nil {
			t.Fatal(err)
		}
		for _, v := range decode(&Block{Encoding: e, Rows: 2, Columns: 70, Data: zeros, Scales: scales}) {
			if v != 0 {
				t.Fatalf("%s: zero became %v", e, v)
			}
		}
		for _, bad := range []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1))} {
			w := make([]float32, 2*70)
			w[72] = bad
			if _, _, err := Quantise(e, 2, 70, w); err == nil || !strings.Contains(err.Error(), "weight 2 of row 1") {
				t.Errorf("%s: %v gave %v", e, bad, err)
			}
		}
		if _, _, err := Quantise(e, 2, 70, make([]float32, 139)); err == nil {
			t.Errorf("%s: too few weights were accepted", e)
		}
	}
	if _, _, err := Quantise(Encoding{Format: F16}, 1, 1, []float32{1e6}); err == nil {
		t.Error("f16 took a million")
	}
	// A published rule: ties to even, and the scale of the largest weight is exact.
	data, scales, err := Quantise(Encoding{Format: Int8Row}, 1, 4, []float32{127, 2.5, 3.5, -127})
	if err != nil || scales[0] != 1 || fmt.Sprint(data) != fmt.Sprint([]byte{127, 2, 4, 129}) {
		t.Errorf("%v %v %v", data, scales, err)
	}
}

// Every 16-bit number survives the way to float32 and back; float32s between two of them go to the nearer.
func TestSixteenBitFloats(t *testing.T) {
	for code := range 1 << 16 {
		h := uint16(code)
		if f := fromBF16(h); f == f && toBF16(f) != h {
			t.Fatalf("bf16 %04x became %04x", h, toBF16(f))
		}
		f := fromF16(h)
		if f == f && toF16(f) != h {
			t.Fatalf("f16 %04x became %04x", h, toF16(f))
		}
		if h&0x7C00 == 0x7C00 || h&0x7FFF == 0x7BFF {
			continue
		}
		// By the definition of f16, with math rather than bits.
		exponent, mantissa := int(h>>10&31), float64(h&1023)
		want := math.Ldexp(1024+mantissa, exponent-25)
		if exponent == 0 {
			want = math.Ldexp(mantissa, -24)
		}
		if h&0x8000 != 0 {
			want = -want
		}
		if float64(f) != want {
			t.Fatalf("f16 %04x is %v, want %v", h, f, want)
		}
		next := fromF16(h + 1)
		middle := (f + next) / 2
		even := h + h&1
		for _, c := range []struct {
			f    float32
			want uint16
		}{{math.Nextafter32(middle, f), h}, {middle, even}, {math.Nextafter32(middle, next), h + 1}} {
			if got := toF16(c.f); got != c.want {
				t.Fatalf("%v became f16 %04x, want %04x", c.f, got, c.want)
			}
		}
	}
	for _, f := range []float32{1.00390625, 1.01171875, -3.0078125, 65504, 1e-40} { // 1 + 2^-8 is a tie
		want := fromBF16(toBF16(f))
		for _, other := range []float32{fromBF16(toBF16(f) - 1), fromBF16(toBF16(f) + 1)} {
			if math.Abs(float64(other-f)) < math.Abs(float64(want-f)) {
				t.Errorf("bf16 of %v is %v, %v is nearer", f, want, other)
			}
		}
	}
	if toBF16(1.00390625) != 0x3F80 || toBF16(1.01171875) != 0x3F82 {
		t.Error("bf16 ties do not go to even")
	}
}

func TestE4M3(t *testing.T) {
	for code := range 256 {
		if code&0x7F == 0x7F {
			if v := e4m3[code]; v == v {
				t.Errorf("code %02x is %v, not NaN", code, v)
			}
			continue
		}
		if got := toE4M3(e4m3[code]); int(got) != code {
			t.Errorf("code %02x became %02x", code, got)
		}
	}
	for _, c := range []struct {
		f    float32
		want byte
	}{{448, 0x7E}, {464, 0x7E}, {1e9, 0x7E}, {-1e9, 0xFE}, {1.0625, 0x38}, {1.1875, 0x3A}, {0.0009765625, 0}, {0.001953125, 1}, {0.0029296875, 2}, {-0.0146484375, 0x88}, {0, 0}} {
		if got := toE4M3(c.f); got != c.want {
			t.Errorf("%v became %02x, want %02x", c.f, got, c.want)
		}
	}
}

func BenchmarkQuantise(b *testing.B) {
	w := make([]float32, 2048*2048)
	random := rand.New(rand.NewPCG(1, 1))
	for i := range w {
		w[i] = float32(random.NormFloat64())
	}
	for _, e := range everyEncoding {
		b.Run(e.String(), func(b *testing.B) {
			b.SetBytes(int64(4 * len(w)))
			for b.Loop() {
				Quantise(e, 2048, 2048, w)
			}
		})
	}
}
