package cpu

import "golang.org/x/sys/unix"

// CacheBytes is the size of the cache that the performance cores of a cluster share, the last that macOS tells of; 0 where it does not say.
func CacheBytes() int64 {
	for _, name := range []string{"hw.perflevel0.l2cachesize", "hw.l3cachesize"} { // Apple's processors, Intel's
		if bytes, err := unix.SysctlUint64(name); err == nil && bytes > 0 {
			return int64(bytes)
		}
	}
	return 0
}
