package residency

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func readMemory() (MemoryState, error) { return memoryFrom(os.DirFS("/"), int64(os.Getpagesize())) }

// memoryFrom reads the files of proc and of the control group below root. A control group with a limit is a smaller machine of its
// own: its total and its use count. Pressure files are missing in old kernels and some containers: no news is calm.
func memoryFrom(root fs.FS, pageBytes int64) (MemoryState, error) {
	meminfo, err := fields(root, "proc/meminfo")
	if err != nil {
		return MemoryState{}, err
	}
	own, err := fields(root, "proc/self/status")
	if err != nil {
		return MemoryState{}, err
	}
	const kB = 1024
	total, available := meminfo["MemTotal:"]*kB, meminfo["MemAvailable:"]*kB
	if total <= 0 {
		return MemoryState{}, errors.New("/proc/meminfo does not say how much memory there is")
	}
	s := MemoryState{
		TotalBytes: total, OwnBytes: (own["RssAnon:"] + own["VmSwap:"]) * kB,
		CompressedBytes: (meminfo["SwapTotal:"] - meminfo["SwapFree:"]) * kB,
	}
	used := total - available
	pressureFile := "proc/pressure/memory"
	if group, limit := memoryGroup(root); limit > 0 && limit < total {
		s.TotalBytes = limit
		stat, err := fields(root, group+"/memory.stat")
		if err != nil {
			return MemoryState{}, err
		}
		used = stat["anon"] + stat["kernel"] + stat["shmem"]
		pressureFile = group + "/memory.pressure"
	}
	s.OthersBytes = max(used-own["RssAnon:"]*kB, 0)
	vmstat, err := fields(root, "proc/vmstat")
	if err != nil {
		return MemoryState{}, err
	}
	s.ThrashBytes = uint64((vmstat["pswpin"] + vmstat["workingset_refault_anon"]) * pageBytes)
	s.Pressure = stall(root, pressureFile)
	return s, nil
}

// Tasks that stood still for want of memory: some of them for 10 % of the last ten seconds is a warning, all of them for 5 % critical.
// systemd-oomd starts to kill at 60 % of some.
const (
	stallWarn     = 10.0
	stallCritical = 5.0
)

func stall(root fs.FS, path string) Pressure {
	content, err := fs.ReadFile(root, path)
	if err != nil {
		return Calm
	}
	p := Calm
	for line := range strings.Lines(string(content)) {
		var avg10 float64
		f := strings.Fields(line)
		if len(f) < 2 || !strings.HasPrefix(f[1], "avg10=") {
			continue
		}
		if avg10, err = strconv.ParseFloat(f[1][len("avg10="):], 64); err != nil {
			continue
		}
		switch {
		case f[0] == "full" && avg10 >= stallCritical:
			p = max(p, Critical)
		case f[0] == "some" && avg10 >= stallWarn:
			p = max(p, Warn)
		}
	}
	return p
}

// memoryGroup finds this process's control group (version 2) and the smallest limit on the way to the root; 0 without one.
func memoryGroup(root fs.FS) (path string, limit int64) {
	content, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return "", 0
	}
	for line := range strings.Lines(string(content)) {
		group, ok := strings.CutPrefix(strings.TrimSpace(line), "0::/")
		if !ok {
			continue
		}
		for at := filepath.Join("sys/fs/cgroup", group); at != "sys/fs" && at != "."; at = filepath.Dir(at) {
			text, err := fs.ReadFile(root, at+"/memory.max")
			if err != nil {
				continue
			}
			n, err := strconv.ParseInt(string(bytes.TrimSpace(text)), 10, 64) // "max" is no number: no limit here
			if err == nil && n > 0 && (limit == 0 || n < limit) {
				path, limit = at, n
			}
		}
	}
	return path, limit
}

// fields reads a file of "name value …" lines; values that are not numbers are left out.
func fields(root fs.FS, path string) (map[string]int64, error) {
	content, err := fs.ReadFile(root, path)
	if err != nil {
		return nil, fmt.Errorf("memory figures: %w", err)
	}
	out := map[string]int64{}
	for line := range strings.Lines(string(content)) {
		f := strings.Fields(line)
		if len(f) < 2 {
			continue
		}
		if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
			out[f[0]] = n
		}
	}
	return out, nil
}

// pressureEvents: Linux is asked at intervals; its triggers need a window of two seconds and rights that programs seldom have.
func pressureEvents() (events <-chan Pressure, stop func()) { return nil, func() {} }
