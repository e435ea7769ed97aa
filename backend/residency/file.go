package residency

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"sync"
	"syscall"
	"time"
)

// directAlignment is what offset, length and memory of a direct read are aligned to: the largest block size of the disks
// and file systems in use. Our records are aligned to 16 KiB anyway.
const directAlignment = 4096

// rawFile is a file as the operating system gives it: the seam for fault injection.
type rawFile interface {
	// Pread may read less than asked for and may be interrupted (EINTR); 0, nil is the end of the file.
	Pread(p []byte, offset int64) (int, error)
	Identity() (identity, error)
	Close() error
	// Forget drops the range from the page cache after a read that could not bypass it.
	Forget(offset, bytes int64)
}

// identity tells a file from one that replaced it or was written over.
type identity struct {
	bytes    int64
	modified time.Time
}

// openFunc opens a file for direct reads or, with direct false, for ordinary ones. errNotDirect: this file system has no direct reads.
type openFunc func(path string, direct bool) (rawFile, error)

var errNotDirect = errors.New("direct reads are not supported here")

// expertFile is one container file held open for reading, and opened again after a failure: the disk may have been
// unplugged and be back.
type expertFile struct {
	path   string
	open   openFunc
	notice func(string)

	mu         sync.RWMutex // held shared during a read, exclusively while the descriptor is replaced
	raw        rawFile      // nil after a failed reopening
	direct     bool
	generation int
	first      identity // at the first opening
}

func openExpertFile(path string, open openFunc, notice func(string)) (*expertFile, error) {
	f := &expertFile{path: path, open: open, notice: notice, direct: true}
	if err := f.openRaw(); err != nil {
		return nil, err
	}
	id, err := f.raw.Identity()
	if err != nil {
		_ = f.raw.Close() // the error that matters is the one above
		return nil, fmt.Errorf("cannot examine %s: %w", path, err)
	}
	f.first = id
	return f, nil
}

// openRaw sets raw. The caller holds mu or is alone.
func (f *expertFile) openRaw() error {
	raw, err := f.open(f.path, f.direct)
	if f.direct && errors.Is(err, errNotDirect) {
		f.direct = false
		f.notice(fmt.Sprintf("%s: its file system has no direct reads; experts pass through the page cache, which takes memory and time", f.path))
		raw, err = f.open(f.path, false)
	}
	if err != nil {
		f.raw = nil
		return fmt.Errorf("cannot open %s: %w", f.path, err)
	}
	f.raw = raw
	return nil
}

// reopen replaces the descriptor that failed, unless another reader has done so already. With buffered set the
// file is read through the page cache from now on.
func (f *expertFile) reopen(generation int, buffered bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.generation != generation && f.raw != nil {
		return nil
	}
	if f.raw != nil {
		_ = f.raw.Close() // a failed descriptor has nothing left to say
		f.raw = nil
	}
	if buffered && f.direct {
		f.direct = false
		f.notice(fmt.Sprintf("%s refuses direct reads; experts pass through the page cache, which takes memory and time", f.path))
	}
	f.generation++
	return f.openRaw()
}

// read fills p from offset; at least need bytes must come, the rest may lie past the end of the file (direct reads
// are rounded up to whole blocks). A first failure is followed by one more try on a fresh descriptor; retried is told.
func (f *expertFile) read(p []byte, offset, need int64, retried func()) error {
	for attempt := 0; ; attempt++ {
		f.mu.RLock()
		raw, generation, direct := f.raw, f.generation, f.direct
		err := fs.ErrClosed
		if raw != nil {
			err = f.fill(raw, p, offset, need, direct)
		}
		f.mu.RUnlock()
		switch {
		case err == nil:
			return nil
		case direct && errors.Is(err, syscall.EINVAL):
			// Some file systems accept the flag and refuse the read.
			if err := f.reopen(generation, true); err != nil {
				return err
			}
		case attempt == 0:
			retried()
			if err := f.reopen(generation, false); err != nil {
				return err
			}
		default:
			return err
		}
	}
}

func (f *expertFile) fill(raw rawFile, p []byte, offset, need int64, direct bool) error {
	var done int64
	for done < need {
		n, err := raw.Pread(p[done:], offset+done)
		if errors.Is(err, syscall.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("reading %d bytes at %d of %s failed: %w", need, offset, f.path, err)
		}
		start := done
		done += int64(n)
		if direct && done < need {
			// A short direct read may end anywhere; the next one must begin on a block.
			done -= done % directAlignment
		}
		if done == start {
			return fmt.Errorf("%s ends at byte %d, inside an expert (%d bytes at %d): it was cut since the model was loaded, or the download is incomplete: %w",
				f.path, offset+start+int64(n), need, offset, io.ErrUnexpectedEOF)
		}
	}
	id, err := raw.Identity()
	if err != nil {
		return fmt.Errorf("cannot examine %s: %w", f.path, err)
	}
	if id.bytes != f.first.bytes || !id.modified.Equal(f.first.modified) {
		return fmt.Errorf("%s has changed since the model was loaded; load the model again", f.path)
	}
	if !direct {
		raw.Forget(offset, done)
	}
	return nil
}

func (f *expertFile) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.raw == nil {
		return nil
	}
	err := f.raw.Close()
	f.raw = nil
	return err
}
