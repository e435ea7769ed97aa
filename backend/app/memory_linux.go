package app

import (
	"bufio"
	"bytes"
	"os"
	"strconv"
)

// systemMemory reads /proc. Linux has no compressor in the sense of macOS.
func systemMemory() SystemMemory {
	m := SystemMemory{TotalBytes: -1, FreeBytes: -1, FileCacheBytes: -1, CompressedBytes: -1, ProcessBytes: -1}
	kilobytes := func(file string, fields map[string]*int64) {
		raw, err := os.ReadFile(file)
		if err != nil {
			return
		}
		lines := bufio.NewScanner(bytes.NewReader(raw))
		for lines.Scan() {
			name, value, _ := bytes.Cut(lines.Bytes(), []byte(":"))
			if field := fields[string(name)]; field != nil {
				if n, err := strconv.ParseInt(string(bytes.TrimSuffix(bytes.TrimSpace(value), []byte(" kB"))), 10, 64); err == nil {
					*field = n << 10
				}
			}
		}
	}
	kilobytes("/proc/meminfo", map[string]*int64{"MemTotal": &m.TotalBytes, "MemFree": &m.FreeBytes, "Cached": &m.FileCacheBytes})
	kilobytes("/proc/self/status", map[string]*int64{"VmRSS": &m.ProcessBytes})
	return m
}
