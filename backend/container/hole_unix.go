//go:build linux || darwin

package container

import (
	"os"
	"syscall"
)

// firstHole is the offset of the first unwritten part of a sparse file, size without one. File systems that cannot tell
// report none. It is asked of the file system, not concluded from the number of blocks: compressed files have few blocks.
func firstHole(f *os.File, size int64) int64 {
	at, err := syscall.Seek(int(f.Fd()), 0, seekHole)
	if err != nil || size == 0 {
		return size
	}
	return min(at, size)
}
