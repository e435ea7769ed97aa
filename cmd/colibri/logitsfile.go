package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// logitsFile is a safetensors file with one tensor, "logits" F32 [rows, columns], written row by row.
type logitsFile struct {
	file      *os.File
	buffer    *bufio.Writer
	row       []byte
	remaining int
}

func createLogitsFile(path string, rows, columns int) (*logitsFile, error) {
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	header := fmt.Appendf(nil, `{"logits":{"dtype":"F32","shape":[%d,%d],"data_offsets":[0,%d]}}`, rows, columns, int64(rows)*int64(columns)*4)
	for len(header)%8 != 0 { // readers that map the file find the numbers aligned
		header = append(header, ' ')
	}
	l := &logitsFile{file: file, buffer: bufio.NewWriterSize(file, 1<<20), remaining: rows}
	l.buffer.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(header))))
	l.buffer.Write(header) // a failed write is kept by the buffer and returned by close
	return l, nil
}

func (l *logitsFile) append(logits []float32) error {
	l.row = l.row[:0]
	var err error
	if l.row, err = binary.Append(l.row, binary.LittleEndian, logits); err != nil {
		return err
	}
	l.remaining--
	_, err = l.buffer.Write(l.row)
	return err
}

// close fails, too, when rows are missing; the incomplete file is removed then.
func (l *logitsFile) close() error {
	err := errors.Join(l.buffer.Flush(), l.file.Close())
	if l.remaining != 0 {
		err = errors.Join(err, os.Remove(l.file.Name()))
	}
	return err
}
