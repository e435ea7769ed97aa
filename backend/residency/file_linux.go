package residency

import "golang.org/x/sys/unix"

const directFlag = unix.O_DIRECT

func afterDirectOpen(int) error { return nil }

// Forget keeps an expert from living twice, in its slot and in the page cache. It is advice: a failure costs nothing but memory
// that the kernel can take back.
func (f systemFile) Forget(offset, bytes int64) {
	_ = unix.Fadvise(f.fd, offset, bytes, unix.FADV_DONTNEED)
}
