package engine

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"colibri/backend/compute"
)

// pageBytes is the page of an Apple silicon Mac, the unit in which backends accept memory.
const pageBytes = 16 << 10

// mapping is anonymous memory outside Go's heap that a backend can address: zeroed, aligned to pageBytes, registered. Pages
// that were never touched cost nothing.
type mapping struct {
	whole   []byte // what mmap returned, a page longer than bytes so that bytes can be aligned
	bytes   []byte
	backend compute.Backend
}

// newMapping maps and registers at least size bytes.
func newMapping(backend compute.Backend, size int64) (*mapping, error) {
	size = roundUp(max(size, 1), pageBytes)
	whole, err := unix.Mmap(-1, 0, int(size+pageBytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("the system gave no %s of memory (%w); close other programs or choose a smaller model or context", bytesText(size), err)
	}
	start := int64(-uintptr(unsafe.Pointer(unsafe.SliceData(whole))) % pageBytes)
	m := &mapping{whole: whole, bytes: whole[start : start+size : start+size], backend: backend}
	if err := backend.Register(m.bytes); err != nil {
		_ = unix.Munmap(whole)
		return nil, fmt.Errorf("%s could not take %s of memory: %w", backend.Name(), bytesText(size), err)
	}
	return m, nil
}

// free unregisters, then unmaps; in this order, so that no processor sees memory that is gone.
func (m *mapping) free() error {
	if m == nil || m.whole == nil {
		return nil
	}
	if err := m.backend.Unregister(m.bytes); err != nil {
		return fmt.Errorf("memory stays mapped because %s still holds it: %w", m.backend.Name(), err)
	}
	err := unix.Munmap(m.whole)
	m.whole, m.bytes = nil, nil
	return err
}

// carver cuts a mapping into arrays. Each begins on a cache line, and on 64 bytes whatever the element.
type carver struct {
	bytes       []byte
	used        int64
	measureOnly bool // give nil arrays, and add up their sizes
}

const carveAlignment = 64

func (c *carver) take(n int64) []byte {
	start := roundUp(c.used, carveAlignment)
	c.used = start + n
	if c.measureOnly {
		return nil
	}
	return c.bytes[start:c.used:c.used]
}

func (c *carver) floats(n int) []float32 { return floatsOf(c.take(int64(n) * 4)) }

func (c *carver) ints(n int) []int32 {
	b := c.take(int64(n) * 4)
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*int32)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

func floatsOf(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

func roundUp(n, unit int64) int64 { return (n + unit - 1) / unit * unit }

// bytesText writes a size as people read it, in decimal units.
func bytesText(n int64) string {
	switch {
	case n >= 1e9:
		return fmt.Sprintf("%.1f GB", float64(n)/1e9)
	case n >= 1e6:
		return fmt.Sprintf("%.1f MB", float64(n)/1e6)
	default:
		return fmt.Sprintf("%.1f kB", float64(n)/1e3)
	}
}
