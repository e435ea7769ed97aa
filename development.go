//go:build dev

package main

import (
	"context"
	"os"
	"strconv"
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

// chooseEngine is the real engine. With COLIBRI_REPLAY=FILE it loads models as ever, but answers with the text of the file, at
// COLIBRI_REPLAY_RATE tokens a second: how the page bears a long answer cannot be tried with the words of a small model.
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
	perSecond, err := strconv.Atoi(os.Getenv("COLIBRI_REPLAY_RATE"))
	if err != nil {
		return app.Answered{}, err
	}
	out := app.Answered{FinishReason: "stop"}
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for runes := []rune(string(text)); len(runes) > 0; out.Tokens++ {
		n := min(4, len(runes)) // about a token
		if err := emit(app.Token{Text: string(runes[:n])}); err != nil {
			out.FinishReason = "cancelled"
			return out, nil
		}
		runes = runes[n:]
		<-tick.C
	}
	return out, nil
}
