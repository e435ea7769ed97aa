package cpu

// #include <stdlib.h>
// #include "matrix.h"
import "C"

import (
	"fmt"
	"math/rand/v2"
	"time"
	"unsafe"

	"colibri/backend/container"
)

// benchBytes is the memory that measurements go through: several times the largest last-level caches of desktop processors.
const benchBytes = 256 << 20

// MeasureReadBandwidth reads memory with all threads and returns the best of a few passes in bytes a second.
func (b *Backend) MeasureReadBandwidth() (float64, error) {
	if err := b.enter(); err != nil {
		return 0, err
	}
	defer b.leave()
	memory := C.calloc(1, benchBytes)
	if memory == nil {
		return 0, errMemory
	}
	defer C.free(memory)
	bytes := unsafe.Slice((*byte)(memory), benchBytes)
	for i := 0; i < len(bytes); i += 4096 {
		bytes[i] = byte(i >> 12) // every page its own: untouched ones are all the same page of zeros
	}
	rate := float64(C.cpu_read_bandwidth(b.c, memory, benchBytes, 5))
	if rate < 0 {
		return 0, errMemory
	}
	return rate, nil
}

// KernelBandwidth multiplies weights of one encoding and shape with one row, going through enough of them to leave the caches behind, and
// returns the weight bytes a second of the best pass.
func (b *Backend) KernelBandwidth(encoding container.Encoding, rows, columns int) (float64, error) {
	if err := supported(encoding); err != nil {
		return 0, fmt.Errorf("cpu: %w", err)
	}
	if rows < 1 || columns < 1 || rows > 1<<20 || columns > 1<<20 {
		return 0, fmt.Errorf("cpu: a weight of [%d, %d] cannot be measured", rows, columns)
	}
	data, scales := encoding.DataBytes(rows, columns), encoding.ScaleCount(rows, columns)
	each := ((data+3)/4*4 + 4*scales + 63) / 64 * 64
	count := int(max(1, benchBytes/each))
	memory := C.malloc(C.size_t(each * int64(count)))
	if memory == nil {
		return 0, errMemory
	}
	defer C.free(memory)
	all := unsafe.Slice((*byte)(memory), each*int64(count))
	random := rand.New(rand.NewPCG(1, 2))
	for i := 0; i+8 <= len(all); i += 8 {
		// Any bits are numbers in the integer formats; these are small finite ones in the others too.
		*(*uint64)(unsafe.Pointer(&all[i])) = random.Uint64() & 0x3f3f3f3f3f3f3f3f
	}
	x, y := make([]float32, columns), make([]float32, rows)
	for i := range x {
		x[i] = random.Float32() - 0.5
	}
	blocks := make([]container.Block, count)
	for i := range blocks {
		at := all[int64(i)*each:]
		blocks[i] = container.Block{Encoding: encoding, Rows: rows, Columns: columns, Data: at[:data:data]}
		if scales > 0 {
			begin := (data + 3) / 4 * 4
			blocks[i].Scales = unsafe.Slice((*float32)(unsafe.Pointer(&at[begin])), scales)
		}
	}
	best := 0.0
	for range 3 {
		start := time.Now()
		for i := range blocks {
			if err := b.Linear(&blocks[i], x, y, 1); err != nil {
				return 0, err
			}
		}
		best = max(best, float64(count)*float64(data+4*scales)/time.Since(start).Seconds())
	}
	return best, nil
}
