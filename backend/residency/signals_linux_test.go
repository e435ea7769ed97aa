package residency

import (
	"context"
	"strings"
	"testing"
	"testing/fstest"
	"time"
)

func linuxFiles(changes map[string]string) fstest.MapFS {
	files := fstest.MapFS{}
	for path, content := range map[string]string{
		"proc/meminfo":     "MemTotal:       16000000 kB\nMemFree:         1000000 kB\nMemAvailable:   10000000 kB\nSwapTotal:       2000000 kB\nSwapFree:        1500000 kB\nHugePages_Total:       0\n",
		"proc/self/status": "Name:\tcolibri\nVmRSS:\t 3000000 kB\nRssAnon:\t 2000000 kB\nVmSwap:\t  100000 kB\n",
		"proc/vmstat":      "pswpin 10\npswpout 20\nworkingset_refault_anon 5\nworkingset_refault_file 7000\n",
		"proc/self/cgroup": "0::/user.slice/app\n",
	} {
		files[path] = &fstest.MapFile{Data: []byte(content)}
	}
	for path, content := range changes {
		if content == "" {
			delete(files, path)
		} else {
			files[path] = &fstest.MapFile{Data: []byte(content)}
		}
	}
	return files
}

func TestLinuxMemory(t *testing.T) {
	s, err := memoryFrom(linuxFiles(nil), 4096)
	if err != nil {
		t.Fatal(err)
	}
	want := MemoryState{TotalBytes: 16000000 << 10, OthersBytes: 4000000 << 10, OwnBytes: 2100000 << 10, CompressedBytes: 500000 << 10, ThrashBytes: 15 * 4096}
	if s != want {
		t.Errorf("got  %+v\nwant %+v", s, want)
	}
}

func TestAControlGroupIsASmallerMachine(t *testing.T) {
	files := map[string]string{
		"sys/fs/cgroup/user.slice/memory.max":          "4294967296\n",
		"sys/fs/cgroup/user.slice/memory.stat":         "anon 3000000000\nfile 900000000\nkernel 50000000\nshmem 1000000\n",
		"sys/fs/cgroup/user.slice/memory.pressure":     "some avg10=12.00 avg60=0.00 avg300=0.00 total=1\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=0\n",
		"sys/fs/cgroup/user.slice/app/memory.max":      "max\n",
		"sys/fs/cgroup/user.slice/app/memory.pressure": "some avg10=99.00 avg60=0.00 avg300=0.00 total=1\n",
	}
	s, err := memoryFrom(linuxFiles(files), 4096)
	if err != nil {
		t.Fatal(err)
	}
	if s.TotalBytes != 4294967296 || s.OthersBytes != 3051000000-2000000<<10 || s.Pressure != Warn {
		t.Errorf("%+v", s)
	}
}

func TestLinuxPressure(t *testing.T) {
	for content, want := range map[string]Pressure{
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n":  Calm,
		"some avg10=9.99 avg60=90.0 avg300=0.00 total=0\nfull avg10=4.99 avg60=0.00 avg300=0.00 total=0\n":  Calm,
		"some avg10=10.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=4.99 avg60=0.00 avg300=0.00 total=0\n": Warn,
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=5.00 avg60=0.00 avg300=0.00 total=0\n":  Critical,
		"some\nfull avg10=x\n": Calm,
	} {
		s, err := memoryFrom(linuxFiles(map[string]string{"proc/pressure/memory": content}), 4096)
		if err != nil || s.Pressure != want {
			t.Errorf("%q: %v, %v", content, s.Pressure, err)
		}
	}
}

func TestLinuxWithoutFigures(t *testing.T) {
	for _, missing := range []string{"proc/meminfo", "proc/self/status", "proc/vmstat"} {
		if _, err := memoryFrom(linuxFiles(map[string]string{missing: ""}), 4096); err == nil || !strings.Contains(err.Error(), missing) {
			t.Errorf("without %s: %v", missing, err)
		}
	}
	if _, err := memoryFrom(linuxFiles(map[string]string{"proc/meminfo": "nonsense\n"}), 4096); err == nil {
		t.Error("nonsense was believed")
	}
}

func TestThisMachineAnswers(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	WatchMemory(ctx, time.Millisecond, func(s MemoryState, err error) {
		if err != nil || s.TotalBytes < 64<<20 || s.OwnBytes <= 0 || s.OwnBytes > s.TotalBytes || s.OthersBytes < 0 {
			t.Errorf("%+v, %v", s, err)
		}
		cancel()
	})
}
