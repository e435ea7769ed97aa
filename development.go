//go:build dev

package main

import (
	"context"
	"os"
	"runtime"
	"sync"
	"time"

	"colibri/backend/app"
)

// Dev exists in development builds only. Native dialogs and native drops cannot be driven from a browser: a test says here what the next
// dialog answers and what was dropped.
type Dev struct {
	w      *window
	mu     sync.Mutex
	answer string
	pace   int // tokens a second of a replayed answer
}

var dev *Dev

func developmentBindings(w *window) []any {
	dev = &Dev{w: w, pace: 200}
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

// Pace sets how many tokens a second an answer is replayed at, the one under way included.
func (d *Dev) Pace(tokensPerSecond int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.pace = tokensPerSecond
}

func (d *Dev) interval() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Second / time.Duration(max(d.pace, 1))
}

// HeapBytes is what this process holds after a collection.
func (d *Dev) HeapBytes() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

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

// chooseEngine is the real engine. With COLIBRI_REPLAY=FILE it loads models as ever, but answers with the text of the file, at the pace of
// Dev.Pace: how the page bears a long answer cannot be tried with the words of a small model.
func chooseEngine(cacheDir string) app.Engine {
	file := os.Getenv("COLIBRI_REPLAY")
	if file == "" {
		return app.RealEngine(cacheDir)
	}
	return replayEngine{app.RealEngine(cacheDir), file}
}

type replayEngine struct {
	app.Engine
	file string
}

func (e replayEngine) Load(ctx context.Context, dir, backend string, memoryBytes int64, progress func(string, float64)) (app.Model, error) {
	m, err := e.Engine.Load(ctx, dir, backend, memoryBytes, progress)
	if err != nil {
		return nil, err
	}
	return replayModel{m, e.file}, nil
}

type replayModel struct {
	app.Model
	file string
}

func (m replayModel) Answer(ctx context.Context, r app.Request, emit func(app.Token) error) (app.Answered, error) {
	text, err := os.ReadFile(m.file)
	if err != nil {
		return app.Answered{}, err
	}
	out := app.Answered{FinishReason: "stop"}
	due := time.Now()
	for runes := []rune(string(text)); len(runes) > 0; out.Tokens++ {
		n := min(4, len(runes)) // about a token
		if err := emit(app.Token{Text: string(runes[:n])}); err != nil {
			out.FinishReason = "cancelled"
			return out, nil
		}
		runes = runes[n:]
		due = due.Add(dev.interval())
		if now := time.Now(); due.Before(now) { // a slow machine does not catch up
			due = now
		}
		time.Sleep(time.Until(due))
	}
	return out, nil
}
