// Package hugepages asks for large memory pages for weights, where a system has them to ask for.
package hugepages

// Prefer does nothing: an Apple silicon Mac has pages of 16 KiB and no larger ones to ask for.
func Prefer([]byte) {}
