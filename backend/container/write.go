package container

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"os"
	"path/filepath"
	"runtime"
	"sync"
)

// disk is the few operations through which files come to be; tests make them fail one by one.
type disk interface {
	Write(f *os.File, b []byte, at int64) error
	Sync(f *os.File) error
	Rename(from, to string) error
	Remove(path string) error
	SyncDirectory(dir string) error
}

type realDisk struct{}

func (realDisk) Write(f *os.File, b []byte, at int64) error {
	_, err := f.WriteAt(b, at)
	return err
}
func (realDisk) Sync(f *os.File) error        { return f.Sync() }
func (realDisk) Rename(from, to string) error { return os.Rename(from, to) }
func (realDisk) Remove(path string) error     { return os.Remove(path) }
func (realDisk) SyncDirectory(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// contents produces packed weights in the planned formats, a band of rows at a time. It is called from several goroutines.
type contents interface {
	// rows gives rows first to last−1 of a weight: packed numbers, scales, and what the packing lost. first is a multiple of
	// Block128, last too unless it is the end.
	rows(w *plannedWeight, first, last int) (data []byte, scales []float32, lost errorStat, err error)
}

// shardWriter writes planned shards: to a temporary name, synced, read back, and renamed, so that a file with its final
// name is always whole. It keeps nothing of a file it could not finish.
type shardWriter struct {
	dir      string
	disk     disk
	contents contents
	written  func(bytes int64) // called as data is written
}

// temporaryPrefix begins the names of unfinished files. The dot keeps them from being taken for shards.
const temporaryPrefix = ".unfinished-"

// write produces one shard.
func (sw *shardWriter) write(ctx context.Context, s *plannedShard) error {
	temporary := filepath.Join(sw.dir, temporaryPrefix+s.name)
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("%s cannot be created (%w); check the permissions of the folder", temporary, err)
	}
	defer f.Close()
	if err := sw.fill(ctx, f, s); err != nil {
		return err
	}
	if err := sw.disk.Sync(f); err != nil {
		return fmt.Errorf("%s cannot be brought to the disk: %w", temporary, err)
	}
	if err := sw.verify(f, s); err != nil {
		return fmt.Errorf("%s was not written as it should be: %w; check the disk", temporary, err)
	}
	return sw.finish(temporary, s.name)
}

// finish gives a complete file its name.
func (sw *shardWriter) finish(temporary, name string) error {
	if err := sw.disk.Rename(temporary, filepath.Join(sw.dir, name)); err != nil {
		return fmt.Errorf("%s cannot be named %s: %w", temporary, name, err)
	}
	if err := sw.disk.SyncDirectory(sw.dir); err != nil {
		return fmt.Errorf("%s cannot be brought to the disk: %w", sw.dir, err)
	}
	return nil
}

func (sw *shardWriter) fill(ctx context.Context, f *os.File, s *plannedShard) error {
	sums, stats := map[string]uint32{}, map[Class]errorStat{}
	header, err := s.headerBytes(sums, stats)
	if err != nil {
		return err
	}
	start := int64(8 + len(header))
	put := func(tensor int, b []byte, at int64) error {
		t := &s.tensors[tensor]
		if err := sw.disk.Write(f, b, start+t.begin+at); err != nil {
			return fmt.Errorf("%s cannot be written (%w); check that the disk has room", filepath.Join(sw.dir, s.name), err)
		}
		sums[t.name] = crc32.Update(sums[t.name], castagnoli, b)
		sw.written(int64(len(b)))
		return nil
	}
	// Items are produced by a few goroutines ahead of the writer, which takes them in order.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for band := range sw.produce(ctx, s) {
		if band.err != nil {
			return band.err
		}
		item := &s.items[band.item]
		if err := put(item.data, band.data, band.dataAt); err != nil {
			return err
		}
		if item.scales >= 0 {
			if err := put(item.scales, bytesOf(band.scales), band.scaleAt); err != nil {
				return err
			}
		}
		for class, lost := range band.lost {
			total := stats[class]
			total.add(lost)
			stats[class] = total
		}
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if header, err = s.headerBytes(sums, stats); err != nil {
		return err
	}
	var length [8]byte
	binary.LittleEndian.PutUint64(length[:], uint64(len(header)))
	if err := sw.disk.Write(f, append(length[:], header...), 0); err != nil {
		return fmt.Errorf("%s cannot be written (%w); check that the disk has room", filepath.Join(sw.dir, s.name), err)
	}
	return nil
}

// band is a part of an item, ready to be written: some rows of a weight, or a whole expert record.
type band struct {
	item            int
	data            []byte
	dataAt, scaleAt int64
	scales          []float32
	lost            map[Class]errorStat
	err             error
}

// bandFloats bounds the weights that are unpacked at once by one goroutine: 16 MiB of float32.
const bandFloats = 4 << 20

// bandRows is how many rows of a width make a band: a multiple of the fp8 tile.
func bandRows(columns int) int {
	return max(bandFloats/columns/Block128, 1) * Block128
}

// produce yields the shard's bands in order, with up to one a processor being made ahead. Memory is bounded by that number times
// an expert, or a band, in unpacked form.
func (sw *shardWriter) produce(ctx context.Context, s *plannedShard) iter.Seq[band] {
	return func(yield func(band) bool) {
		queue := make(chan chan band, min(runtime.GOMAXPROCS(0), 8))
		stop := make(chan struct{})
		var working sync.WaitGroup
		start := func(work func() band) bool {
			slot := make(chan band, 1)
			select {
			case queue <- slot:
			case <-stop:
				return false
			case <-ctx.Done():
				return false
			}
			working.Go(func() { slot <- work() })
			return true
		}
		working.Go(func() {
			defer close(queue)
			for i := range s.items {
				w := s.items[i].weight
				if w == nil {
					if !start(func() band { return sw.record(i, &s.items[i]) }) {
						return
					}
					continue
				}
				step := bandRows(w.Columns)
				for first := 0; first < w.Rows; first += step {
					if !start(func() band { return sw.rowBand(i, w, first, min(first+step, w.Rows)) }) {
						return
					}
				}
			}
		})
		// Whoever stops early waits for what is under way: it reads files that the caller is about to close.
		defer working.Wait()
		defer close(stop)
		for slot := range queue {
			if !yield(<-slot) {
				return
			}
		}
	}
}

func (sw *shardWriter) rowBand(item int, w *plannedWeight, first, last int) band {
	data, scales, lost, err := sw.contents.rows(w, first, last)
	bandsBefore := first
	if w.Encoding.Format == FP8Block128 {
		bandsBefore = first / Block128
	}
	return band{
		item: item, data: data, scales: scales, lost: map[Class]errorStat{w.Class: lost}, err: err,
		dataAt:  int64(first) * w.Encoding.DataBytes(1, w.Columns),
		scaleAt: 4 * int64(bandsBefore) * w.Encoding.ScaleCount(1, w.Columns),
	}
}

func (sw *shardWriter) record(item int, p *plannedItem) band {
	record := make([]byte, p.layout.SlotBytes)
	lost := map[Class]errorStat{}
	for i, place := range p.layout.placements() {
		w := &p.parts[i]
		step := bandRows(w.Columns)
		dataAt, scaleAt := place.DataOffset, place.ScaleOffset
		for first := 0; first < w.Rows; first += step {
			data, scales, l, err := sw.contents.rows(w, first, min(first+step, w.Rows))
			if err != nil {
				return band{err: err}
			}
			dataAt += int64(copy(record[dataAt:], data))
			scaleAt += int64(copy(record[scaleAt:], bytesOf(scales)))
			total := lost[w.Class]
			total.add(l)
			lost[w.Class] = total
		}
	}
	return band{item: item, data: record, lost: lost}
}

// verify reads a finished file back: its header through the reader's own checks, its data against the checksums.
func (sw *shardWriter) verify(f *os.File, s *plannedShard) error {
	check := &shard{name: s.name, handle: f}
	if err := check.readHeader(); err != nil {
		return err
	}
	return check.verifySums(nil)
}

// verifySums compares all tensors with the checksums in the file. progress may be nil.
func (s *shard) verifySums(progress func(bytes int64)) error {
	text, ok := s.header.metadata[sumsKey]
	if !ok {
		return errors.New("it carries no checksums")
	}
	sums, err := parseSums(text)
	if err != nil {
		return err
	}
	buffer := make([]byte, 1<<20)
	for _, t := range s.header.tensors {
		sum := uint32(0)
		for at := t.begin; at < t.end; {
			n, err := s.handle.ReadAt(buffer[:min(int64(len(buffer)), t.end-at)], s.dataStart+at)
			if n == 0 && err != nil {
				if err == io.EOF {
					err = errors.New("the file has become shorter")
				}
				return fmt.Errorf("tensor %q cannot be read: %w", t.name, err)
			}
			sum = crc32.Update(sum, castagnoli, buffer[:n])
			at += int64(n)
			if progress != nil {
				progress(int64(n))
			}
		}
		want, known := sums[t.name]
		if !known {
			return fmt.Errorf("tensor %q has no checksum", t.name)
		}
		if sum != want {
			return fmt.Errorf("tensor %q is damaged: its checksum is %08x instead of %08x", t.name, sum, want)
		}
	}
	return nil
}
