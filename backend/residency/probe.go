package residency

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// Probe says how to measure a disk: pieces of PieceBytes, Readers at once, until TotalBytes are read or Time has passed.
type Probe struct {
	PieceBytes, TotalBytes int64
	Readers                int
	Time                   time.Duration
}

// QuickProbe reads pieces of about an expert's size, as the loaders do, until it has enough to tell.
var QuickProbe = Probe{PieceBytes: 4 << 20, TotalBytes: 300 << 20, Readers: 4, Time: 350 * time.Millisecond}

// MeasureDisk reads scattered pieces of the largest file in a model's directory, past the page cache where the file system allows it, and
// returns bytes a second. Pages that are cached already are served from memory on some systems: the figure is then an upper bound.
func MeasureDisk(ctx context.Context, dir string, probe Probe) (bytesPerSecond float64, err error) {
	path, size, err := largestShard(dir)
	if err != nil {
		return 0, err
	}
	file, err := openSystem(path, true)
	if errors.Is(err, errNotDirect) {
		file, err = openSystem(path, false)
	}
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	piece := min(probe.PieceBytes, size) / directAlignment * directAlignment
	if piece == 0 {
		return 0, fmt.Errorf("%s is too small to measure the disk with", path)
	}
	memory, err := mapMemory(piece * int64(probe.Readers))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unmapMemory(memory)) }()

	places := rand.Perm(int(size / piece))
	began := time.Now()
	var (
		mu     sync.Mutex
		total  int64
		failed error
		wait   sync.WaitGroup
	)
	// next hands out the following place, or says that the probe is over.
	next := func() (offset int64, more bool) {
		mu.Lock()
		defer mu.Unlock()
		if failed != nil || len(places) == 0 || total >= probe.TotalBytes || time.Since(began) > probe.Time || ctx.Err() != nil {
			return 0, false
		}
		offset, places = int64(places[0])*piece, places[1:]
		return offset, true
	}
	for i := range probe.Readers {
		wait.Go(func() {
			buffer := memory[int64(i)*piece : int64(i+1)*piece]
			for offset, more := next(); more; offset, more = next() {
				n, err := file.Pread(buffer, offset)
				if err == nil && n == 0 {
					err = io.ErrUnexpectedEOF
				}
				mu.Lock()
				total += int64(n)
				if err != nil {
					failed = fmt.Errorf("reading %s: %w", path, err)
				}
				mu.Unlock()
			}
		})
	}
	wait.Wait()
	elapsed := time.Since(began)
	if err := errors.Join(failed, ctx.Err()); err != nil {
		return 0, err
	}
	return float64(total) / elapsed.Seconds(), nil
}

func largestShard(dir string) (path string, size int64, err error) {
	shards, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil {
		return "", 0, err
	}
	for _, shard := range shards {
		if info, err := os.Stat(shard); err == nil && info.Size() > size {
			path, size = shard, info.Size()
		}
	}
	if path == "" {
		return "", 0, fmt.Errorf("%s has no .safetensors file to measure the disk with", dir)
	}
	return path, size, nil
}
