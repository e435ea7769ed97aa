package residency

// PreferHugePages does nothing: an Apple silicon Mac has pages of 16 KiB and no larger ones to ask for.
func PreferHugePages([]byte) {}
