//go:build unix

package residency

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// systemFile is a descriptor. os.File is avoided because its ReadAt continues a short direct read at an unaligned offset.
type systemFile struct{ fd int }

// openSystem is the openFunc of this system.
func openSystem(path string, direct bool) (rawFile, error) {
	flags := unix.O_RDONLY | unix.O_CLOEXEC
	if direct {
		flags |= directFlag
	}
	for {
		fd, err := unix.Open(path, flags, 0)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil && direct && (errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP)):
			return nil, errNotDirect
		case err != nil:
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		if direct {
			if err := afterDirectOpen(fd); err != nil {
				return nil, errors.Join(errNotDirect, err, unix.Close(fd))
			}
		}
		return systemFile{fd}, nil
	}
}

// maxPread keeps one call below the 2 GiB that macOS refuses.
const maxPread = 1 << 30

func (f systemFile) Pread(p []byte, offset int64) (int, error) {
	return unix.Pread(f.fd, p[:min(len(p), maxPread)], offset)
}

func (f systemFile) Identity() (identity, error) {
	var st unix.Stat_t
	if err := unix.Fstat(f.fd, &st); err != nil {
		return identity{}, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		return identity{}, fmt.Errorf("it is not a regular file")
	}
	return identity{st.Size, time.Unix(st.Mtim.Unix())}, nil
}

func (f systemFile) Close() error { return unix.Close(f.fd) }
