package cpu

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CacheBytes is the size of the processor's last cache; 0 where the system does not say.
func CacheBytes() (last int64) {
	sizes, _ := filepath.Glob("/sys/devices/system/cpu/cpu0/cache/index*/size") // an error is of the pattern
	for _, path := range sizes {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		kilobytes, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(string(text)), "K"), 10, 64)
		if err == nil {
			last = max(last, kilobytes<<10)
		}
	}
	return last
}
