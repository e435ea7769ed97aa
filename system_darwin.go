package main

/*
#cgo LDFLAGS: -framework Cocoa -framework UniformTypeIdentifiers
#include "system_darwin.h"
*/
import "C"

import (
	"context"
	"sync/atomic"
)

// hooked is the window that callbacks from AppKit are for; there is one in a program.
var hooked atomic.Pointer[window]

// installHooks adds what Wails leaves out: reopening from the Dock, log-out, dropped links, sleep.
func (w *window) installHooks() {
	hooked.Store(w)
	C.colibri_install_hooks()
}

// The functions below are called on the main thread, inside an autorelease pool: they start a goroutine and return.

//export colibriDropped
func colibriDropped(path *C.char) {
	dropped := C.GoString(path)
	if w := hooked.Load(); w != nil {
		go w.core.OpenPaths([]string{dropped})
	}
}

//export colibriSleeping
func colibriSleeping(sleeping C.int) {
	if w := hooked.Load(); w != nil {
		go w.core.SetPaused(sleeping != 0)
	}
}

//export colibriLoggingOut
func colibriLoggingOut() {
	w := hooked.Load()
	go func() {
		if w != nil {
			w.remember()
			w.shutdown(context.Background())
		}
		C.colibri_reply_terminate()
	}()
}
