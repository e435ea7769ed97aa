package residency

/*
#cgo CFLAGS: -Wall -Wextra -Werror -mmacosx-version-min=13.0
#include "signals_darwin.h"
*/
import "C"

import (
	"fmt"
	"os"
	"syscall"
)

func readMemory() (MemoryState, error) {
	var m C.coli_memory
	if question := C.coli_memory_read(&m); question != 0 {
		return MemoryState{}, fmt.Errorf("the system does not answer question %d about memory", int(question))
	}
	// As Activity Monitor counts: anonymous memory that cannot be dropped, wired memory, and the compressor's own.
	used := int64(m.internal) - int64(m.purgeable) + int64(m.wired) + int64(m.compressor)
	return MemoryState{
		TotalBytes:      int64(m.total),
		OthersBytes:     max(used-int64(m.footprint), 0),
		OwnBytes:        int64(m.footprint),
		CompressedBytes: int64(m.compressor),
		ThrashBytes:     (uint64(m.decompressions) + uint64(m.swapins)) * uint64(m.page),
		Pressure:        pressureOf(int(m.pressure)),
	}, nil
}

// pressureOf translates the kernel's level: 1 normal, 2 warn, 4 critical.
func pressureOf(level int) Pressure {
	switch {
	case level >= 4:
		return Critical
	case level >= 2:
		return Warn
	}
	return Calm
}

// pressureEvents delivers the system's pressure events as they come. Without them (no pipe, no source) the interval of
// WatchMemory is what is left.
func pressureEvents() (events <-chan Pressure, stop func()) {
	var ends [2]int
	if err := syscall.Pipe(ends[:]); err != nil {
		return nil, func() {}
	}
	for _, fd := range ends {
		syscall.CloseOnExec(fd)
	}
	_ = syscall.SetNonblock(ends[1], true) // a handler that blocked on a full pipe would hold a system thread
	source := C.coli_pressure_start(C.int(ends[1]))
	read := os.NewFile(uintptr(ends[0]), "pressure events")
	if source == nil {
		_ = read.Close()
		_ = syscall.Close(ends[1])
		return nil, func() {}
	}
	told := make(chan Pressure, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		var flag [1]byte
		for {
			if n, err := read.Read(flag[:]); err != nil || n == 0 {
				return
			}
			select {
			case told <- pressureOf(int(flag[0])):
			default: // the last event is still unread: a reading is about to be taken anyway
			}
		}
	}()
	return told, func() {
		C.coli_pressure_stop(source)
		_ = syscall.Close(ends[1]) // the reader sees the end of the pipe
		<-done
		_ = read.Close()
	}
}
