package cpu

// #include "matrix.h"
import "C"

import (
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"colibri/backend/container"
	"colibri/backend/hugepages"
)

// benchBytes is the memory that measurements go through: several times the largest last-level caches of desktop processors.
const benchBytes = 256 << 20

const (
	// cachedBytes are beyond a core's own caches and within the one that all share.
	cachedBytes  = 8 << 20
	productBytes = 64 << 20
	productTime  = 20 * time.Millisecond
)

// benchMemory is memory as weights have it, in large pages where there are any.
func benchMemory(bytes int64) ([]byte, error) {
	memory, err := unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("cpu: memory for a measurement: %w", err)
	}
	hugepages.Prefer(memory)
	return memory, nil
}

func freeBenchMemory(memory []byte) { _ = unix.Munmap(memory) } // an error would mean that it was not mapped

// MeasureReadBandwidth reads memory with all threads and returns the best of a few passes in bytes a second.
func (b *Backend) MeasureReadBandwidth() (float64, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	defer b.leave()
	memory, err := benchMemory(benchBytes)
	if err != nil {
		return 0, err
	}
	defer freeBenchMemory(memory)
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = byte(i >> 12) // every page its own: untouched ones are all the same page of zeros
	}
	rate := float64(C.cpu_read_bandwidth(b.c, unsafe.Pointer(&memory[0]), benchBytes, 5))
	if rate < 0 {
		return 0, errMemory
	}
	return rate, nil
}

// MeasurePeak does float32 multiply-adds in registers with all threads and returns the best of a few passes in floating-point
// operations a second, two a multiply-add: the limit of ProductRate.
func (b *Backend) MeasurePeak() (float64, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	defer b.leave()
	return float64(C.cpu_peak_rate(b.c, 5)), nil
}

// ProductRate multiplies weights of one encoding and shape with a batch of rows each, as prefill does, going through enough of them to leave
// the caches behind, and returns the floating-point operations a second of the best of three stretches of productTime.
func (b *Backend) ProductRate(encoding container.Encoding, rows, columns, batch int) (float64, error) {
	if batch < 1 || batch > 1<<16 {
		return 0, fmt.Errorf("cpu: a batch of %d rows cannot be measured", batch)
	}
	w, err := b.benchWeights(encoding, rows, columns, productBytes)
	if err != nil {
		return 0, err
	}
	defer freeBenchMemory(w.memory)
	x, y := make([]float32, batch*columns), make([]float32, batch*rows)
	for i := range x {
		x[i] = w.random.Float32() - 0.5
	}
	best, next := 0.0, 0
	for range 3 {
		start, count := time.Now(), 0
		for count == 0 || time.Since(start) < productTime {
			if err := b.Linear(&w.blocks[next%len(w.blocks)], x, y, batch); err != nil {
				return 0, err
			}
			count, next = count+1, next+1
		}
		best = max(best, 2*float64(count)*float64(batch)*float64(rows)*float64(columns)/time.Since(start).Seconds())
	}
	return best, nil
}

// benchWeights are weights of one encoding and shape whose memory the caller frees.
type benchWeights struct {
	memory []byte
	blocks []container.Block
	each   int64 // bytes of one, scales included
	random *rand.Rand
}

// benchWeights makes as many weights as fill the given bytes, one at least.
func (b *Backend) benchWeights(encoding container.Encoding, rows, columns int, bytes int64) (*benchWeights, error) {
	if err := supported(encoding); err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	if rows < 1 || columns < 1 || rows > 1<<20 || columns > 1<<20 {
		return nil, fmt.Errorf("cpu: a weight of [%d, %d] cannot be measured", rows, columns)
	}
	data, scales := encoding.DataBytes(rows, columns), encoding.ScaleCount(rows, columns)
	each := ((data+3)/4*4 + 4*scales + 63) / 64 * 64
	count := max(1, bytes/each)
	all, err := benchMemory(each * count)
	if err != nil {
		return nil, err
	}
	w := &benchWeights{memory: all, blocks: make([]container.Block, count), each: data + 4*scales, random: rand.New(rand.NewPCG(1, 2))}
	// Any bits are numbers in the integer formats; these are small finite ones in the others too. One block of them is repeated.
	first := all[:min(len(all), 1<<20)]
	for i := 0; i+8 <= len(first); i += 8 {
		*(*uint64)(unsafe.Pointer(&first[i])) = w.random.Uint64() & 0x3f3f3f3f3f3f3f3f
	}
	for i := len(first); i < len(all); {
		i += copy(all[i:], first)
	}
	for i := range w.blocks {
		at := all[int64(i)*each:]
		w.blocks[i] = container.Block{Encoding: encoding, Rows: rows, Columns: columns, Data: at[:data:data]}
		if scales > 0 {
			begin := (data + 3) / 4 * 4
			w.blocks[i].Scales = unsafe.Slice((*float32)(unsafe.Pointer(&at[begin])), scales)
			for j := range w.blocks[i].Scales {
				w.blocks[i].Scales[j] = 0.01 // subnormal ones, which any bits would give, halve the speed from the cache
			}
		}
	}
	return w, nil
}

// KernelBandwidth multiplies weights of one encoding and shape with one row, going through enough of them to leave the caches behind, and
// returns the weight bytes a second of the best pass.
func (b *Backend) KernelBandwidth(encoding container.Encoding, rows, columns int) (float64, error) {
	return b.kernelBandwidth(encoding, rows, columns, benchBytes, 1)
}

// CachedKernelBandwidth is the same with weights that the last-level cache holds.
func (b *Backend) CachedKernelBandwidth(encoding container.Encoding, rows, columns int) (float64, error) {
	return b.kernelBandwidth(encoding, rows, columns, cachedBytes, 16)
}

func (b *Backend) kernelBandwidth(encoding container.Encoding, rows, columns int, bytes int64, times int) (float64, error) {
	w, err := b.benchWeights(encoding, rows, columns, bytes)
	if err != nil {
		return 0, err
	}
	defer freeBenchMemory(w.memory)
	x, y := make([]float32, columns), make([]float32, rows)
	for i := range x {
		x[i] = w.random.Float32() - 0.5
	}
	best := 0.0
	for range 3 {
		start := time.Now()
		for i := range times * len(w.blocks) {
			if err := b.Linear(&w.blocks[i%len(w.blocks)], x, y, 1); err != nil {
				return 0, err
			}
		}
		best = max(best, float64(times*len(w.blocks))*float64(w.each)/time.Since(start).Seconds())
	}
	return best, nil
}
