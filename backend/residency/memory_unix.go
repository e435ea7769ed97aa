//go:build unix

package residency

import (
	"unsafe"

	"golang.org/x/sys/unix"

	"colibri/backend/container"
	"colibri/backend/hugepages"
)

// mapMemory makes an anonymous private mapping that begins on a multiple of container.ExpertAlignment, as backends ask
// for; its pages take memory once they are touched. Pages are 16 KiB on a Mac and 4 KiB elsewhere: there a larger mapping is
// trimmed at both ends.
func mapMemory(bytes int64) ([]byte, error) {
	const alignment = container.ExpertAlignment
	size := uintptr(bytes)
	base, err := unix.MmapPtr(-1, 0, nil, size+alignment, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, err
	}
	head := -uintptr(base) % alignment
	if head > 0 {
		if err := unix.MunmapPtr(base, head); err != nil {
			return nil, err
		}
	}
	start := unsafe.Add(base, head)
	if err := unix.MunmapPtr(unsafe.Add(start, size), alignment-head); err != nil {
		return nil, err
	}
	memory := unsafe.Slice((*byte)(start), bytes)
	hugepages.Prefer(memory)
	return memory, nil
}

func unmapMemory(memory []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(memory)), uintptr(len(memory)))
}
