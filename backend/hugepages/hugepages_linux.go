// Package hugepages asks for large memory pages for weights. A page of 4 KiB holds two rows of a weight, and finding the next one in the page
// tables costs a virtual machine more than reading it: decode with weights beyond the caches is 8 % faster in the middle of four pairs (docs/performance.md). It knows
// nothing of what lies in the memory.
package hugepages

import "golang.org/x/sys/unix"

// Prefer asks for pages of 2 MiB where the memory has room for them. For memory that is filled whole, as weights are: it takes memory by the whole
// page. It is a wish: a kernel that has none to give uses small ones.
func Prefer(memory []byte) { _ = unix.Madvise(memory, unix.MADV_HUGEPAGE) }
