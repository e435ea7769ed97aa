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

// freeBytes is the room left for this user on the disk that holds path.
func freeBytes(path string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(path, &s); err != nil {
		return 0, err
	}
	return int64(s.Bavail) * int64(s.Bsize), nil
}

// lock takes a file for this process until it is closed, and fails at once if another process has it.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }
