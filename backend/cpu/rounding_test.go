package cpu

import (
	"math"
	"slices"
	"strings"
	"testing"

	"colibri/backend/container"
)

// activationSteps is the number of steps from zero to the largest of 64 activations where a weight's activations are rounded: few-bit weights
// have 127 (kernels_bytes.h); int8 has 32767 in the x86 variants (kernels_short.h). 0: they are not.
func activationSteps(b *Backend, e container.Encoding, columns int) float64 {
	if b.precise != 0 {
		return 0
	}
	switch e.Format {
	case container.Int4Row, container.Int2Row, container.Int3Group64, container.Int4Group:
		if columns >= 128 && (e.Format != container.Int4Group || e.Group%64 == 0) {
			return 127
		}
	case container.Int8Row:
		if columns >= 128 && strings.Contains(b.Name(), "AVX") {
			return 32767
		}
	}
	return 0
}

// activationRounding bounds what the rounding of activations adds to each output: for 64 columns half a step times the weights' sizes.
func activationRounding(b *Backend, e container.Encoding, w []float64, rows, columns int, x []float32) []float64 {
	out, steps := make([]float64, rows), activationSteps(b, e, columns)
	if steps == 0 {
		return out
	}
	for first := 0; first < columns; first += 64 {
		last, largest := min(first+64, columns), 0.0
		for _, v := range x[first:last] {
			largest = max(largest, math.Abs(float64(v)))
		}
		for r := range out {
			for _, v := range w[r*columns+first : r*columns+last] {
				// a millionth more: steps and quotients are float32, so that a number half-way may go either way
				out[r] += math.Abs(v) * largest / (2 * steps) * (1 + 1e-6*steps/127)
			}
		}
	}
	return out
}

var roundingEncodings = []container.Encoding{
	{Format: container.Int8Row}, {Format: container.Int4Row}, {Format: container.Int4Group, Group: 64}, {Format: container.Int4Group, Group: 192},
	{Format: container.Int3Group64}, {Format: container.Int2Row},
}

// On the whole the rounding is far below its bound: for activations like those of a model 4e-5 of the largest output with 16 bits, 1e-2 with 8.
func TestActivationsRoundLittle(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 2, variant)
		for _, e := range roundingEncodings {
			limit := map[float64]float64{0: 1e-5, 127: 1e-2, 32767: 4e-5}[activationSteps(b, e, 2048)]
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
			t.Logf("%s %s: %.2g", variant, e, worst/largest)
			if worst > limit*largest {
				t.Errorf("%s %s: the largest error is %.2g of the largest output", variant, e, worst/largest)
			}
		}
	}
}

// The rule of kernels_bytes.h: where activations have 8 bits, rounding them adds an order of magnitude less than rounding the weights did. Weights
// are rounded here as converters round them.
func TestActivationsRoundLessThanWeights(t *testing.T) {
	b := open(t, 2, "")
	const rows, columns = 64, 2048
	for _, e := range []container.Encoding{{Format: container.Int4Row}, {Format: container.Int4Group, Group: 64}, {Format: container.Int3Group64}, {Format: container.Int2Row}} {
		r := newRandom(t)
		numbers, x, y := normals(r, rows*columns, 1), normals(r, columns, 1), make([]float32, rows)
		data, scales, err := container.Quantise(e, rows, columns, numbers)
		if err != nil {
			t.Fatal(err)
		}
		w := container.Block{Encoding: e, Rows: rows, Columns: columns, Data: data, Scales: scales}
		if err := b.Linear(&w, x, y, 1); err != nil {
			t.Fatal(err)
		}
		rounded, _ := multiply(decode(&w), rows, columns, x)
		weights, activations := 0.0, 0.0
		for i := range rounded {
			exact := 0.0
			for c := range columns {
				exact += float64(numbers[i*columns+c]) * float64(x[c])
			}
			weights += (rounded[i] - exact) * (rounded[i] - exact)
			activations += (float64(y[i]) - rounded[i]) * (float64(y[i]) - rounded[i])
		}
		t.Logf("%s: %.0f times", e, math.Sqrt(weights/activations))
		if weights < 100*activations {
			t.Errorf("%s: rounding the weights errs by %.3g, rounding the activations by %.3g more", e, math.Sqrt(weights/rows), math.Sqrt(activations/rows))
		}
	}
}

// Precise products agree with float64 as nearly as if nothing was rounded.
func TestKeepActivations(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 2, variant)
		b.KeepActivations()
		for _, e := range roundingEncodings {
			for _, n := range []int{1, 4, 20} {
				const rows, columns = 40, 700
				r := newRandom(t)
				w := randomBlock(r, e, rows, columns, 1)
				x, y := normals(r, n*columns, 1), make([]float32, n*rows)
				if err := b.Linear(&w, x, y, n); err != nil {
					t.Fatal(err)
				}
				numbers := decode(&w)
				for i := range n {
					want, magnitude := multiply(numbers, rows, columns, x[i*columns:])
					for j := range want {
						if got := float64(y[i*rows+j]); !(math.Abs(got-want[j]) <= 1e-6*magnitude[j]) {
							t.Fatalf("%s %s: %g, want %g", variant, e, got, want[j])
						}
					}
				}
			}
		}
	}
}

// Activations of any size: groups of zeros, of the smallest and largest numbers, one giant among small ones; and what is no number
// makes the results none.
func TestRoundedActivationsOfAnySize(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 1, variant)
		for _, e := range roundingEncodings {
			const rows, columns = 24, 640
			r := newRandom(t)
			w := randomBlock(r, e, rows, columns, 1)
			for i := range w.Data[:len(w.Data)/4] {
				w.Data[i] = 0xff // the largest numbers of the unsigned formats
			}
			numbers := decode(&w)
			fills := map[string]func(x []float32){
				"zeros":     func(x []float32) { clear(x) },
				"subnormal": func(x []float32) { fill(x[64:128], 1e-42) },
				"tiny":      func(x []float32) { fill(x[64:128], 3e-37) },
				"large":     func(x []float32) { fill(x[128:192], 1e30) },
				"one giant": func(x []float32) { x[200] = -1e6 },
				// what a 16-bit sum is filled most by: with the weights' bits all set, see below
				"largest":  func(x []float32) { fill(x, 127) },
				"opposite": func(x []float32) { fill(x[:320], -32767); fill(x[320:], 32767) },
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
						rounding := activationRounding(b, e, numbers, rows, columns, x[i*columns:][:columns])
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
