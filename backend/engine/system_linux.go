package engine

import (
	"os"
	"runtime"
	"strconv"
	"strings"
)

// peakBytes is the most memory the process had resident. VmHWM, not getrusage: ru_maxrss also counts what the process was
// before exec.
func peakBytes() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if value, found := strings.CutPrefix(line, "VmHWM:"); found {
			kilobytes, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kilobytes << 10
		}
	}
	return 0
}

// threads is how many the CPU backend calculates with: the processors that this process may use.
func threads() int { return runtime.GOMAXPROCS(0) }
