//go:build dev

package main

import "sync"

// Dev exists in development builds only. Native dialogs and native drops cannot be driven from a browser: a test says here what the next
// dialog answers and what was dropped.
type Dev struct {
	w      *window
	mu     sync.Mutex
	answer string
}

var dev *Dev

func developmentBindings(w *window) []any {
	dev = &Dev{w: w}
	return []any{dev}
}

// Answer sets the path that the next dialog returns.
func (d *Dev) Answer(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.answer = path
}

// Drop does what a drop of these paths on the window does.
func (d *Dev) Drop(paths []string) { d.w.core.OpenPaths(dropped(paths)) }

// Menu does what a menu item does.
func (d *Dev) Menu(command string) { d.w.core.MenuCommand(command) }

func (d *Dev) next() (string, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	answer := d.answer
	d.answer = ""
	return answer, nil
}

func (w *window) chooseContainer(string) (string, error)     { return dev.next() }
func (w *window) chooseFile(string) (string, error)          { return dev.next() }
func (w *window) choosePlace(string, string) (string, error) { return dev.next() }
