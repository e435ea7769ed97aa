//go:build unix

package residency

import "golang.org/x/sys/unix"

// mapMemory makes an anonymous private mapping; its pages take memory once they are touched. Mappings begin on a page, which is
// 16 KiB on a Mac and 4 KiB elsewhere, where nothing asks for more; align says what is asked for.
func mapMemory(bytes int64) ([]byte, error) {
	return unix.Mmap(-1, 0, int(bytes), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
}

func unmapMemory(memory []byte) error { return unix.Munmap(memory) }
