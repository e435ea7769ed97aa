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

// A probe reads pieces of about an expert's size, as many at once as the loaders do, until it has enough to tell or has taken
// long enough.
const (
	probePieceBytes = 4 << 20
	probeReaders    = 4
	probeBytes      = 300 << 20
	probeTime       = 350 * time.Millisecond
)

// MeasureDisk reads scattered pieces of the largest file in a model's directory, past the page cache where the file system allows it, and
// returns bytes a second. Pages that are cached already are served from memory on some systems: the figure is then an upper bound.
func MeasureDisk(ctx context.Context, dir string) (bytesPerSecond float64, err error) {
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
	piece := min(probePieceBytes, size/directAlignment*directAlignment)
	if piece == 0 {
		return 0, fmt.Errorf("%s is too small to measure the disk with", path)
	}
	memory, err := mapMemory(piece * probeReaders)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, unmapMemory(memory)) }()

	places := rand.New(rand.NewPCG(1, 2)).Perm(int(size / piece))
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
		if failed != nil || len(places) == 0 || total >= probeBytes || time.Since(began) > probeTime || ctx.Err() != nil {
			return 0, false
		}
		offset, places = int64(places[0])*piece, places[1:]
		return offset, true
	}
	for i := range probeReaders {
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
