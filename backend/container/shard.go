package container

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// shard is one open safetensors file whose header has been checked. The handle stays open, so what is read later
// is the file that was checked.
type shard struct {
	name      string // within the directory
	path      string
	bytes     int64
	dataStart int64
	header    *header
	handle    *os.File
}

// openShard opens and checks one file of a container directory. The header is the only thing read.
func openShard(dir, name string) (*shard, error) {
	path, err := within(dir, name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened (%w); check the permissions of the folder", name, cause(err))
	}
	s := &shard{name: name, path: path, handle: f}
	if err := s.readHeader(); err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// within resolves symbolic links and refuses those that lead out of the directory: a container that is moved or handed
// on must be whole, and a file from a stranger must not name files elsewhere on this machine.
func within(dir, name string) (string, error) {
	root, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return "", fmt.Errorf("%s cannot be opened: %w", dir, err)
	}
	path, err := filepath.EvalSymlinks(filepath.Join(root, name))
	if errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("%s is missing from %s (or is a link to nothing); download it again", name, dir)
	}
	if err != nil {
		return "", fmt.Errorf("%s cannot be opened: %w", name, err)
	}
	if rel, err := filepath.Rel(root, path); err != nil || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%s is a link to a file outside %s; put the file itself there (a Hugging Face cache folder consists of such links: download with --local-dir)", name, dir)
	}
	return path, nil
}

func (s *shard) readHeader() error {
	refuse := func(format string, args ...any) error {
		return fmt.Errorf("%s cannot be used: %w; download it again", s.name, fmt.Errorf(format, args...))
	}
	info, err := s.handle.Stat()
	if err != nil {
		return refuse("%w", err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file; put the file itself there", s.name)
	}
	s.bytes = info.Size()
	start := make([]byte, 200)
	n, err := s.handle.ReadAt(start, 0)
	if err != nil && err != io.EOF {
		return refuse("%w", err)
	}
	if err := lfsStub(s.name, start[:n]); err != nil {
		return err
	}
	if n < 8 {
		return refuse("it has only %d bytes", n)
	}
	length := binary.LittleEndian.Uint64(start)
	switch {
	case length == 0:
		return refuse("its header is empty")
	case length > maxHeaderBytes:
		return refuse("its header claims %d bytes, more than the format allows", length)
	case int64(length) > s.bytes-8:
		return refuse("its header claims %d bytes, but the file has %d", length, s.bytes)
	}
	text := make([]byte, length)
	if _, err := s.handle.ReadAt(text, 8); err != nil {
		return refuse("its header cannot be read (%w)", err)
	}
	s.dataStart = 8 + int64(length)
	if s.header, err = parseHeader(text, s.bytes-s.dataStart); err != nil {
		return refuse("%w", err)
	}
	if hole := firstHole(s.handle, s.bytes); hole < s.bytes {
		return refuse("the disk holds nothing from byte %d of %d on (an unfinished download, or a copy that left out zeros)", hole, s.bytes)
	}
	return nil
}

// lfsStub recognises the text file that a clone without Git LFS leaves in place of a large one.
func lfsStub(name string, start []byte) error {
	if !bytes.HasPrefix(start, []byte("version https://git-lfs.github.com/spec/")) {
		return nil
	}
	return fmt.Errorf(`%s is only a Git LFS pointer, not the file; run "git lfs pull" in the folder, or download the file itself`, name)
}
