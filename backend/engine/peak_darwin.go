package engine

import "golang.org/x/sys/unix"

// peakBytes is the most memory the process had resident.
func peakBytes() int64 {
	var usage unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &usage); err != nil {
		return 0
	}
	return usage.Maxrss // bytes on macOS
}
