// Package app is everything the window does that needs no window: the library of containers, loading and unloading
// models, conversations and the life of an answer, settings, and the numbered events that keep a page in step.
// The engine, the templates and the database lie behind it; the window (main) lies in front and only forwards. It must
// never know of Wails, of a screen or of a menu, so that all of it runs in a test, and it never blocks the caller on the engine: commands
// change state, start goroutines and return.
package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

// Options are what the program gives the app. Every field but Log is needed.
type Options struct {
	DataDir string                                    // settings, library, database
	Engine  Engine                                    // loads models
	Store   Store                                     // keeps conversations; closed by Close
	Bundled func(ctx context.Context) (string, error) // unpacks the bundled container and says where it is
	Send    func(Event)                               // delivers one event to every page; called by one goroutine only
	Log     *slog.Logger
	Notices []string // what happened before the app existed and the user should read, such as a damaged database set aside
}

// App is the running program. Its methods may be called from any goroutine.
type App struct {
	opts   Options
	log    *slog.Logger
	events *emitter
	gate   *gate
	awake  *awake

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // every goroutine that touches the model or the store

	mu          sync.Mutex // guards all below; never held while the engine, the disk or the page is waited for, the store excepted
	settings    Settings
	containers  []Container // of the library, the bundled one first
	model       modelState
	generations map[string]*generation // by conversation
	offers      []Offer
	shown       bool // a page has been loaded
	visible     bool // a page is on the screen and wants figures
	rates       rates
	pressure    string
	pressureAt  time.Time
	lastDriven  string // the conversation whose tokens the engine still holds
	lastTokens  int    // how many

	resumed chan struct{} // not nil while answers are held; closed when they go on

	turn  chan struct{} // holds one token: whoever has it drives the engine
	poked chan struct{} // wakes sampleStats
}

// New reads settings and library and starts the emitter. It touches no model: the window is painted first.
func New(opts Options) (*App, error) {
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &App{
		opts: opts, log: opts.Log, gate: newGate(time.After), awake: &awake{},
		ctx: ctx, cancel: cancel,
		generations: map[string]*generation{}, turn: make(chan struct{}, 1), poked: make(chan struct{}, 1),
		visible: true,
	}
	a.turn <- struct{}{}
	a.model.ModelStatus = ModelStatus{Phase: ModelNone}
	notices := opts.Notices

	settings, notice, err := readSettings(filepath.Join(opts.DataDir, "settings.json"))
	if err != nil {
		cancel()
		return nil, err
	}
	a.settings = settings
	if notice != "" {
		notices = append(notices, notice)
	}
	a.containers, notice, err = readContainers(a.containersPath())
	if err != nil {
		cancel()
		return nil, err
	}
	if notice != "" {
		notices = append(notices, notice)
	}
	a.sweep()
	a.events = newEmitter(opts.Send, opts.Log)
	for _, n := range notices {
		a.notify(Notice{Level: "warning", Text: n})
	}
	a.work.Add(1)
	go a.sampleStats()
	return a, nil
}

// Close stops answers (what was generated is kept), frees the model and closes the store. It waits for them, at most until ctx ends.
func (a *App) Close(ctx context.Context) error {
	a.cancel()
	done := make(chan struct{})
	go func() { a.work.Wait(); close(done) }()
	var err error
	select {
	case <-done:
	case <-ctx.Done():
		err = errors.New("the engine did not stop in time; the answer up to this moment is kept")
	}
	a.mu.Lock()
	model := a.model.loaded
	a.model.loaded = nil
	a.mu.Unlock()
	if model != nil && err == nil {
		err = model.Close()
	}
	a.awake.set(false)
	a.events.close()
	return errors.Join(err, a.opts.Store.Close())
}

// notify shows a sentence in the window.
func (a *App) notify(n Notice) {
	a.log.Info("notice", "level", n.Level, "text", n.Text)
	a.events.post("notice", "", n)
}

// State is everything a page needs after it was loaded or lost count: a page holds no truth of its own.
func (a *App) State() (State, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	conversations, err := a.opts.Store.Conversations()
	if err != nil {
		return State{}, fmt.Errorf("the conversations cannot be read: %w", err)
	}
	s := State{
		Session:       a.gate.open(),
		Settings:      a.settings,
		Containers:    a.containersView(),
		Model:         a.model.ModelStatus,
		Conversations: conversations,
		Generations:   []GenerationStatus{},
		Offers:        slices.Clone(a.offers),
		Stats:         a.statsLocked(),
	}
	for _, g := range a.generations {
		s.Generations = append(s.Generations, g.status)
	}
	s.Seq = a.events.seal()
	if !a.shown { // the window is painted; now the model that was used last may take the disk
		a.shown = true
		if a.model.Phase == ModelNone {
			if err := a.loadLocked(a.preferredLocked()); err != nil {
				a.notify(Notice{Level: "warning", Text: Loading.say(err)})
			}
		}
	}
	return s, nil
}

// Command marks a call that changes something: the page numbers them 1, 2, 3 … within its session, and they take effect in that
// order whatever order they arrive in. The session comes with State, which only the program's own page can read.
type Command struct {
	Session string `json:"session"`
	Number  int64  `json:"number"`
}

// Do runs a state-changing call in its turn.
func (a *App) Do(c Command, call func() error) error {
	leave, err := a.gate.enter(a.ctx, c)
	if err != nil {
		return err
	}
	defer leave()
	return call()
}
