package engine

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// peakBytes is the most memory the process had resident.
func peakBytes() int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return usage.Maxrss // bytes on macOS
}

// threads is how many the CPU backend calculates with: the performance cores. An efficiency core takes three times as long for its
// share, and the others would wait for it. Intel Macs have no levels.
func threads() int {
	if n, err := unix.SysctlUint32("hw.perflevel0.logicalcpu"); err == nil && n > 0 {
		return min(int(n), runtime.GOMAXPROCS(0))
	}
	return runtime.GOMAXPROCS(0)
}
