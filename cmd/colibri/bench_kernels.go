package main

import (
	"context"
	"errors"
	"runtime"
	"slices"

	"colibri/backend/container"
	"colibri/backend/cpu"
)

type kernelSpeed struct {
	Format         string  `json:"format"`
	Rows           int     `json:"rows"`
	Columns        int     `json:"columns"`
	BytesPerSecond float64 `json:"bytes_per_second"`
	ShareOfMemory  float64 `json:"share_of_read_bandwidth"`
}

var benchEncodings = []string{"int8-row", "int4-g64", "int4-row", "int2-row", "int3-g64", "fp8", "bf16", "f16", "f32"}

// benchShapes are the sizes that decide: an expert's and a dense layer's of GLM-5.2. As many of them are multiplied as leave the
// last-level caches behind.
var benchShapes = [][2]int{{2048, 6144}, {6144, 2048}}

// benchKernels measures the kernels that multiply a weight with one row, each beside memory: how fast that is read
// varies twofold within seconds on shared machines.
func benchKernels(ctx context.Context, report *benchReport, rounds int) (err error) {
	backend, err := cpu.New(runtime.NumCPU())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, backend.Close()) }()
	report.Machine += ", " + backend.Name()
	var reads []float64
	for _, name := range benchEncodings {
		encoding, err := container.ParseEncoding(name)
		if err != nil {
			return err
		}
		for _, shape := range benchShapes {
			var rates, shares []float64
			for range rounds {
				if err := ctx.Err(); err != nil {
					return err
				}
				read, err := backend.MeasureReadBandwidth()
				if err != nil {
					return err
				}
				rate, err := backend.KernelBandwidth(encoding, shape[0], shape[1])
				if err != nil {
					return err
				}
				reads, rates, shares = append(reads, read), append(rates, rate), append(shares, rate/read)
			}
			report.Kernels = append(report.Kernels, kernelSpeed{encoding.String(), shape[0], shape[1], middle(rates), middle(shares)})
		}
	}
	report.ReadBandwidth = middle(reads)
	return nil
}

// median measures n times.
func median(n int, measure func() (float64, error)) (float64, error) {
	values := make([]float64, n)
	for i := range values {
		var err error
		if values[i], err = measure(); err != nil {
			return 0, err
		}
	}
	return middle(values), nil
}

func middle(values []float64) float64 {
	slices.Sort(values)
	return values[len(values)/2]
}
