package cpu

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"colibri/backend/container"
)

// Every format and instruction set against float64, on shapes that end everywhere within blocks, groups and tiles.
func TestLinear(t *testing.T) {
	shapes := []struct{ rows, columns, batch int }{
		{1, 1, 1}, {1, 64, 1}, {3, 7, 2}, {5, 63, 3}, {9, 65, 4}, {17, 100, 5}, {33, 127, 7}, {16, 128, 9}, {20, 129, 13}, {130, 256, 1},
		{7, 300, 66}, {35, 320, 12}, {64, 1000, 1}, {19, 513, 70}, {128, 192, 3}, {5, 6144, 1}, {40, 2048, 11},
	}
	for _, variant := range variants(t) {
		b := open(t, 2, variant)
		for _, e := range allEncodings {
			t.Run(fmt.Sprint(variant, "/", e), func(t *testing.T) {
				r := newRandom(t)
				for _, s := range shapes {
					w := randomBlock(r, e, s.rows, s.columns, 1)
					x, y := normals(r, s.batch*s.columns, 1), make([]float32, s.batch*s.rows)
					if err := b.Linear(&w, x, y, s.batch); err != nil {
						t.Fatal(err)
					}
					numbers := decode(&w)
					for i := range s.batch {
						want, magnitude := multiply(numbers, s.rows, s.columns, x[i*s.columns:])
						rounding := activationRounding(b, e, numbers, s.rows, s.columns, x[i*s.columns:])
						for j := range want {
							// float32 with eight partial sums: 1e-6 of the magnitudes is 17 roundings of the whole
							if got := float64(y[i*s.rows+j]); !(math.Abs(got-want[j]) <= 1e-6*magnitude[j]+rounding[j]) {
								t.Fatalf("[%d, %d] row %d of %d output %d: %g, want %g", s.rows, s.columns, i, s.batch, j, got, want[j])
							}
						}
					}
				}
			})
		}
	}
}

// A row's result is the same bits alone and among others, with one thread and with four.
func TestLinearIsTheSameForAnyBatchAndThreads(t *testing.T) {
	for _, variant := range variants(t) {
		one, four := open(t, 1, variant), open(t, 4, variant)
		for _, e := range allEncodings {
			t.Run(fmt.Sprint(variant, "/", e), func(t *testing.T) {
				r := newRandom(t)
				const rows, columns, batch = 150, 700, 70
				w := randomBlock(r, e, rows, columns, 1)
				x := normals(r, batch*columns, 1)
				want := make([]float32, batch*rows)
				for i := range batch {
					if err := one.Linear(&w, x[i*columns:(i+1)*columns], want[i*rows:(i+1)*rows], 1); err != nil {
						t.Fatal(err)
					}
				}
				for _, n := range []int{2, 3, 4, 5, 8, 9, 10, 11, 64, 65, 70} {
					for _, b := range []*Backend{one, four} {
						got := make([]float32, n*rows)
						if err := b.Linear(&w, x, got, n); err != nil {
							t.Fatal(err)
						}
						if !slices.Equal(got, want[:n*rows]) {
							t.Fatalf("%d rows with %d threads differ from one at a time", n, b.Threads())
						}
					}
				}
			})
		}
	}
}

func TestEmbed(t *testing.T) {
	for _, variant := range variants(t) {
		b := open(t, 1, variant)
		for _, e := range allEncodings {
			t.Run(fmt.Sprint(variant, "/", e), func(t *testing.T) {
				r := newRandom(t)
				for _, columns := range []int{1, 9, 64, 131, 320} {
					const rows = 131
					table := randomBlock(r, e, rows, columns, 1)
					ids := []int32{0, 130, 7, 7, int32(r.IntN(rows))}
					x := make([]float32, len(ids)*columns)
					if err := b.Embed(&table, ids, x); err != nil {
						t.Fatal(err)
					}
					for i, id := range ids {
						for c := range columns {
							want := element(&table, int(id), c)
							if got := float64(x[i*columns+c]); math.Abs(got-want) > 1e-7*math.Abs(want) {
								t.Fatalf("width %d token %d column %d: %g, want %g", columns, id, c, got, want)
							}
						}
					}
				}
			})
		}
	}
}

// Any shape of any format agrees with float64, and one row at a time with all at once.
func FuzzLinear(f *testing.F) {
	for i := range allEncodings {
		f.Add(uint8(i), uint16(3+i), uint16(60+7*i), uint8(i), uint64(i))
	}
	var backends []*Backend
	for _, variant := range variants(f) {
		backends = append(backends, open(f, 2, variant))
	}
	f.Fuzz(func(t *testing.T, encoding uint8, rows, columns uint16, batch uint8, seed uint64) {
		e := allEncodings[int(encoding)%len(allEncodings)]
		nr, nc, n := 1+int(rows)%300, 1+int(columns)%1500, 1+int(batch)%80
		r := rand.New(rand.NewPCG(seed, 2))
		w := randomBlock(r, e, nr, nc, 1)
		x := normals(r, n*nc, 1)
		numbers := decode(&w)
		for _, b := range backends {
			y, one := make([]float32, n*nr), make([]float32, nr)
			if err := b.Linear(&w, x, y, n); err != nil {
				t.Fatal(err)
			}
			i := r.IntN(n)
			if err := b.Linear(&w, x[i*nc:(i+1)*nc], one, 1); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(one, y[i*nr:(i+1)*nr]) {
				t.Fatalf("%s %s [%d, %d]: row %d of %d differs from itself alone", b.Name(), e, nr, nc, i, n)
			}
			want, magnitude := multiply(numbers, nr, nc, x[i*nc:])
			rounding := activationRounding(b, e, numbers, nr, nc, x[i*nc:])
			for j := range want {
				if !(math.Abs(float64(one[j])-want[j]) <= 1e-6*magnitude[j]+rounding[j]) {
					t.Fatalf("%s %s [%d, %d] output %d: %g, want %g", b.Name(), e, nr, nc, j, one[j], want[j])
				}
			}
		}
	})
}

func BenchmarkLinear(b *testing.B) {
	backend := open(b, 2, "")
	limit, err := backend.MeasureReadBandwidth()
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"f32", "bf16", "f16", "int8", "int4", "int4-g64", "int4-g32", "int4-g128", "int3", "int2", "fp8"} {
		e, err := container.ParseEncoding(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				rate, err := backend.KernelBandwidth(e, 2048, 6144)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(rate*1e-9, "GB/s")
				b.ReportMetric(100*rate/limit, "%ofread")
			}
		})
	}
}

// The time of products with weights in the cache, and what it is in multiply-adds.
func benchmarkProducts(b *testing.B, backend *Backend, name string, rows, columns, batch int) {
	e, err := container.ParseEncoding(name)
	if err != nil {
		b.Fatal(err)
	}
	b.Run(fmt.Sprintf("%s/%dx%dx%d", name, rows, columns, batch), func(b *testing.B) {
		r := newRandom(b)
		w := randomBlock(r, e, rows, columns, 1)
		x, y := normals(r, batch*columns, 1), make([]float32, batch*rows)
		for b.Loop() {
			if err := backend.Linear(&w, x, y, batch); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(2*float64(rows)*float64(columns)*float64(batch)*float64(b.N)/b.Elapsed().Seconds()*1e-9, "GFLOP/s")
	})
}

// One core with a token, a token and its drafts, and an expert's rows of a prompt.
func BenchmarkFewRows(b *testing.B) {
	backend := open(b, 1, "")
	for _, name := range []string{"int8", "int4-g64", "int3", "int2"} {
		for _, s := range []struct{ rows, columns int }{{768, 2048}, {320, 320}} {
			for _, batch := range []int{1, 2, 3, 32} {
				benchmarkProducts(b, backend, name, s.rows, s.columns, batch)
			}
		}
	}
}

func BenchmarkTiles(b *testing.B) {
	backend := open(b, 2, "")
	for _, name := range []string{"f32", "int8", "int4-g64", "int2", "fp8"} {
		for _, s := range []struct{ rows, columns, batch int }{{1024, 2048, 256}, {128, 320, 64}, {320, 128, 64}} {
			benchmarkProducts(b, backend, name, s.rows, s.columns, s.batch)
		}
	}
}
