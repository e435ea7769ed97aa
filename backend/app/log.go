package app

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

const (
	maxLogBytes = 2 << 20
	keptLogs    = 3
)

// Log is a file that makes room for itself: when it is full it becomes colibri.1.log and the oldest of three is dropped.
type Log struct {
	dir string

	mu   sync.Mutex
	file *os.File
	size int64
}

// OpenLog continues the log in dir.
func OpenLog(dir string) (*Log, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("the folder for logs cannot be made: %w", err)
	}
	l := &Log{dir: dir}
	return l, l.open()
}

func (l *Log) name(i int) string {
	if i == 0 {
		return filepath.Join(l.dir, "colibri.log")
	}
	return filepath.Join(l.dir, fmt.Sprintf("colibri.%d.log", i))
}

func (l *Log) open() error {
	file, err := os.OpenFile(l.name(0), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("the log cannot be written: %w", err)
	}
	info, err := file.Stat()
	if err != nil {
		file.Close()
		return err
	}
	l.file, l.size = file, info.Size()
	return nil
}

// Write appends one line.
func (l *Log) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.size > 0 && l.size+int64(len(line)) > maxLogBytes {
		l.file.Close()
		for i := keptLogs - 1; i > 0; i-- {
			_ = os.Rename(l.name(i-1), l.name(i)) // a missing one is no loss
		}
		if err := l.open(); err != nil {
			return 0, err
		}
	}
	n, err := l.file.Write(line)
	l.size += int64(n)
	return n, err
}

// Close closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.file.Close()
}
