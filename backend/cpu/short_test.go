package cpu

import (
	"math"
	"slices"
	"strings"
	"testing"

	"colibri/backend/container"
)

// Of weights with 512 columns and more, the x86 variants multiply these formats with 16-bit activations (kernels_short.h).
func isShort(b *Backend, e container.Encoding, columns int) bool {
	if !strings.Contains(b.Name(), "AVX") || columns < 512 {
		return false
	}
	return e.Format == container.Int8Row || e.Format == container.Int4Row || e.Format == container.Int4Group && e.Group%64 == 0
}

// shortRounding bounds what the rounding of activations adds to each output: half a step, the 32767th part of the largest of 64
// columns, times the weights' sizes. Zeros where activations are not rounded.
func shortRounding(b *Backend, e container.Encoding, w []float64, rows, columns int, x []float32) []float64 {
	out := make([]float64, rows)
	if !isShort(b, e, columns) {
		return out
	}
	for first := 0; first < columns; first += 64 {
		last, largest := min(first+64, columns), 0.0
		for _, v := range x[first:last] {
			largest = max(largest, math.Abs(float64(v)))
		}
		for r := range out {
			for _, v := range w[r*columns+first : r*columns+last] {
				out[r] += math.Abs(v) * largest / (2 * 32767)
			}
		}
	}
	return out
}

var shortEncodings = []container.Encoding{
	{Format: container.Int8Row}, {Format: container.Int4Row}, {Format: container.Int4Group, Group: 64}, {Format: container.Int4Group, Group: 192},
}

// On the whole the rounding is far below its bound: 4e-5 of the largest output for activations like those of a model.
func TestShortActivationsRoundLittle(t *testing.T) {
	b := open(t, 2, "")
	for _, e := range shortEncodings {
		if !isShort(b, e, 2048) {
			t.Skipf("%s multiplies with float32 activations only, so that nothing is rounded; TestLinear checks these formats there", b.Name())
		}
		r := newRandom(t)
		const rows, columns = 256, 2048
		w := randomBlock(r, e, rows, columns, 1)
		x, y := normals(r, columns, 1), make([]float32, rows)
		if err := b.Linear(&w, x, y, 1); err != nil {
			t.Fatal(err)
		}
		want, _ := multiply(decode(&w), rows, columns, x)
		worst, largest := 0.0, 0.0
		for j := range want {
			worst, largest = max(worst, math.Abs(float64(y[j])-want[j])), max(largest, math.Abs(want[j]))
		}
		if worst > 4e-5*largest {
			t.Errorf("%s: the largest error is %.2g of the largest output", e, worst/largest)
		}
	}
}

// Activations of any size: groups of zeros, of the smallest and largest numbers, one giant among small ones; and what is no number
// makes the results none.
func TestShortActivationsOfAnySize(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 1, variant)
		for _, e := range shortEncodings {
			const rows, columns = 24, 640
			if !isShort(b, e, columns) {
				continue
			}
			r := newRandom(t)
			w := randomBlock(r, e, rows, columns, 1)
			numbers := decode(&w)
			fills := map[string]func(x []float32){
				"zeros":     func(x []float32) { clear(x) },
				"subnormal": func(x []float32) { fill(x[64:128], 1e-42) },
				"tiny":      func(x []float32) { fill(x[64:128], 3e-37) },
				"large":     func(x []float32) { fill(x[128:192], 1e30) },
				"one giant": func(x []float32) { x[200] = -1e6 },
				"opposite":  func(x []float32) { fill(x[:320], -32767); fill(x[320:], 32767) },
			}
			for name, change := range fills {
				for _, n := range []int{1, 5} {
					x, y := normals(r, n*columns, 1), make([]float32, n*rows)
					for i := range n {
						change(x[i*columns:][:columns])
					}
					if err := b.Linear(&w, x, y, n); err != nil {
						t.Fatal(err)
					}
					for i := range n {
						want, magnitude := multiply(numbers, rows, columns, x[i*columns:][:columns])
						rounding := shortRounding(b, e, numbers, rows, columns, x[i*columns:][:columns])
						for j := range want {
							if got := float64(y[i*rows+j]); !(math.Abs(got-want[j]) <= 1e-6*magnitude[j]+rounding[j]) {
								t.Fatalf("%s %s %s: %g, want %g", variant, e, name, got, want[j])
							}
						}
					}
				}
			}
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				for _, n := range []int{1, 5} {
					x, y := normals(r, n*columns, 1), make([]float32, n*rows)
					x[(n-1)*columns+columns-1] = float32(bad)
					if err := b.Linear(&w, x, y, n); err != nil {
						t.Fatal(err)
					}
					finite := func(v float32) bool { return v-v == 0 }
					last := y[(n-1)*rows:]
					if math.IsNaN(bad) && slices.ContainsFunc(last, finite) || !slices.ContainsFunc(last, func(v float32) bool { return !finite(v) }) {
						t.Errorf("%s %s: %g in the activations gives %v", variant, e, bad, last)
					}
					if i := slices.IndexFunc(y[:(n-1)*rows], func(v float32) bool { return !finite(v) }); i >= 0 {
						t.Errorf("%s %s: %g in another row reaches output %d", variant, e, bad, i)
					}
				}
			}
		}
	}
}

func fill(x []float32, v float32) {
	for i := range x {
		x[i] = v
	}
}
