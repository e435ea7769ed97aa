package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// modelState is the model in memory and the load that is under way. Fields are guarded by App.mu.
type modelState struct {
	ModelStatus
	loaded  Model
	failure error              // why Phase is ModelFailed
	load    int64              // number of the newest load; an older one that ends changes nothing
	cancel  context.CancelFunc // of the newest load
	changed chan struct{}      // closed when Phase changes; nil until someone waits
}

func (a *App) setModelLocked(s ModelStatus) {
	a.model.ModelStatus = s
	if a.model.changed != nil {
		close(a.model.changed)
		a.model.changed = nil
	}
	a.events.post("model", "model", s)
}

// LoadModel brings a container of the library into memory and returns at once. Answers in progress are stopped and kept
// first, and those that wait for a model get this one; a model that is there is freed first: two never share the memory.
func (a *App) LoadModel(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.loadLocked(id)
}

func (a *App) loadLocked(id string) error {
	if a.ctx.Err() != nil {
		return errClosing
	}
	c, ok := a.containerLocked(id)
	if !ok {
		return errors.New("this model is not in the list any more; add it again with Open")
	}
	if a.model.ID == id && (a.model.Phase == ModelReady || a.model.Phase == ModelLoading) {
		return nil
	}
	for _, g := range a.generations {
		if g.status.Phase != "waiting" {
			g.stop()
			a.postGenerationLocked(g)
		}
	}
	number, ctx := a.beginLoadLocked()
	a.setModelLocked(ModelStatus{Phase: ModelLoading, ID: id, Name: c.Name, Stage: "Getting ready"})
	a.poke()
	a.work.Add(1)
	go a.load(ctx, number, c)
	return nil
}

// ReloadModel loads the current model again, for settings that only a load takes up.
func (a *App) ReloadModel() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := a.model.ID
	if id == "" {
		return nil
	}
	a.model.ID = ""
	return a.loadLocked(id)
}

// UnloadModel frees the model, or cancels the load under way.
func (a *App) UnloadModel() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.model.Phase == ModelNone {
		return nil
	}
	a.stopAllLocked()
	number, ctx := a.beginLoadLocked()
	a.setModelLocked(ModelStatus{Phase: ModelNone})
	a.work.Add(1)
	go func() {
		defer a.work.Done()
		if a.takeTurn(ctx) != nil {
			return
		}
		defer a.giveTurn()
		if err := a.freeModel(); err != nil {
			a.failLoad(number, ModelStatus{}, err)
		}
	}()
	return nil
}

// beginLoadLocked makes whatever load is under way obsolete.
func (a *App) beginLoadLocked() (number int64, ctx context.Context) {
	if a.model.cancel != nil {
		a.model.cancel()
	}
	a.model.load++
	ctx, a.model.cancel = context.WithCancel(a.ctx)
	return a.model.load, ctx
}

func (a *App) load(ctx context.Context, number int64, c Container) {
	defer a.work.Done()
	status := ModelStatus{Phase: ModelLoading, ID: c.ID, Name: c.Name}
	if a.takeTurn(ctx) != nil {
		return
	}
	defer a.giveTurn()
	settings := a.Settings()
	err := a.freeModel()
	path := c.Path
	if err == nil && c.Bundled {
		path, err = a.opts.Bundled(ctx)
	}
	if err == nil {
		if described, problem := a.opts.Engine.Describe(ctx, path, settings.MemoryLimitBytes); problem != nil {
			err = problem
		} else {
			a.refresh(c.ID, path, described)
		}
	}
	var model Model
	if err == nil {
		start := time.Now()
		model, err = a.opts.Engine.Load(ctx, path, settings.Backend, settings.MemoryLimitBytes, func(stage string, done float64) {
			a.mu.Lock()
			defer a.mu.Unlock()
			if a.model.load == number && a.model.Phase == ModelLoading {
				a.model.Stage, a.model.Progress = stage, done
				a.events.post("model", "model", a.model.ModelStatus)
			}
		})
		a.log.Info("load", "path", path, "took", time.Since(start), "error", err)
	}
	if err != nil {
		a.failLoad(number, status, err)
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.model.load != number || ctx.Err() != nil { // overtaken: the newer load is waiting for the turn
		a.model.loaded = model // which frees it
		return
	}
	a.model.loaded = model
	status.Phase, status.Progress = ModelReady, 1
	status.Backend, status.Context = model.Backend(), model.ContextTokens()
	a.setModelLocked(status)
}

// refresh keeps what loading learnt about the container, and that it was used.
func (a *App) refresh(id, path string, described Container) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.containerLocked(id)
	if !ok {
		return
	}
	described.ID, described.Name, described.Bundled, described.Added = c.ID, c.Name, c.Bundled, c.Added
	described.Path, described.LastUsed = path, time.Now().UnixMilli()
	if described.SpeedHigh == 0 { // not measured by this build
		described.SpeedLow, described.SpeedHigh = c.SpeedLow, c.SpeedHigh
	}
	err := a.replaceContainerLocked(described)
	if a.settings.LastModel != id && err == nil {
		err = a.updateSettingsLocked(func(s *Settings) { s.LastModel = id })
	}
	if err != nil {
		a.notify(Notice{Level: "warning", Text: Listing.say(err)})
	}
}

// failLoad records why the newest load ended without a model.
func (a *App) failLoad(number int64, status ModelStatus, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.model.load != number {
		return
	}
	if errors.Is(err, context.Canceled) {
		a.setModelLocked(ModelStatus{Phase: ModelNone})
		return
	}
	status.Phase, status.Error = ModelFailed, Loading.say(err)
	a.model.failure = err
	a.setModelLocked(status)
}

// freeModel closes the model in memory, if any. The caller has the turn.
func (a *App) freeModel() error {
	a.mu.Lock()
	model := a.model.loaded
	a.model.loaded = nil
	a.mu.Unlock()
	if model == nil {
		return nil
	}
	if err := model.Close(); err != nil {
		return fmt.Errorf("the previous model could not be freed: %w", err)
	}
	return nil
}

// preferredLocked is the model that was used last, if it is there, else the bundled one.
func (a *App) preferredLocked() string {
	if c, ok := a.containerLocked(a.settings.LastModel); ok {
		if _, err := os.Stat(c.Path); c.Bundled || err == nil {
			return c.ID
		}
	}
	return BundledID
}

// takeTurn waits until nobody drives the engine.
func (a *App) takeTurn(ctx context.Context) error {
	select {
	case <-a.turn:
		if ctx.Err() != nil {
			a.giveTurn()
			return ctx.Err()
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *App) giveTurn() { a.turn <- struct{}{} }

// awaitModel waits until a model is ready, beginning a load if none is.
func (a *App) awaitModel(ctx context.Context) error {
	for {
		a.mu.Lock()
		switch a.model.Phase {
		case ModelReady:
			a.mu.Unlock()
			return nil
		case ModelFailed:
			err := a.model.failure
			a.mu.Unlock()
			return err
		case ModelNone:
			if err := a.loadLocked(a.preferredLocked()); err != nil {
				a.mu.Unlock()
				return err
			}
		}
		if a.model.changed == nil {
			a.model.changed = make(chan struct{})
		}
		changed := a.model.changed
		a.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
