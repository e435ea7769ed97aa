package residency

import "golang.org/x/sys/unix"

// PreferHugePages asks for pages of 2 MiB where the memory has room for them. For memory that is filled whole, as weights are: it takes memory by the
// whole page. A page of 4 KiB holds two rows of a weight, and finding the next one in the page tables costs a virtual machine more than reading
// it (decode with weights beyond the caches 6 % faster, see docs/performance.md). It is a wish: a kernel that has none to give uses small ones.
func PreferHugePages(memory []byte) { _ = unix.Madvise(memory, unix.MADV_HUGEPAGE) }
