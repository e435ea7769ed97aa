package app

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
)

// BundledID names the bundled model in the library; it is always there and always first.
const BundledID = "bundled"

func (a *App) containersPath() string { return filepath.Join(a.opts.DataDir, "library.json") }

func readContainers(path string) (library []Container, notice string, err error) {
	notice, err = readJSON(path, "list of models", &library)
	if err != nil || notice != "" {
		library = nil
	}
	library = slices.DeleteFunc(library, func(c Container) bool { return c.ID == "" || c.Path == "" || c.Bundled })
	return append([]Container{{ID: BundledID, Name: "Colibri Mini", Bundled: true}}, library...), notice, err
}

// containersView is the library with each container's presence looked up now.
func (a *App) containersView() []Container {
	view := slices.Clone(a.containers)
	for i := range view {
		if !view[i].Bundled {
			_, err := os.Stat(view[i].Path)
			view[i].Missing = err != nil
		}
	}
	return view
}

// Containers is the list of models.
func (a *App) Containers() []Container {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.containersView()
}

// changeContainersLocked changes a copy of the list, writes it and takes it up; a failed write leaves the list as it was.
func (a *App) changeContainersLocked(change func(containers []Container) []Container) error {
	containers := change(slices.Clone(a.containers))
	kept := slices.DeleteFunc(slices.Clone(containers), func(c Container) bool { return c.Bundled })
	if err := writeJSON(a.containersPath(), kept); err != nil {
		return fmt.Errorf("the list of models could not be kept: %w", err)
	}
	a.containers = containers
	a.events.post("containers", "containers", nil)
	return nil
}

func (a *App) containerLocked(id string) (Container, bool) {
	return a.findContainerLocked(func(c Container) bool { return c.ID == id })
}

func (a *App) containerAtLocked(path string) (Container, bool) {
	return a.findContainerLocked(func(c Container) bool { return samePath(c.Path, path) })
}

func (a *App) findContainerLocked(holds func(Container) bool) (Container, bool) {
	i := slices.IndexFunc(a.containers, holds)
	if i < 0 {
		return Container{}, false
	}
	return a.containers[i], true
}

// replaceContainerLocked puts c in the place of the container with its id.
func (a *App) replaceContainerLocked(c Container) error {
	return a.changeContainersLocked(func(containers []Container) []Container {
		containers[slices.IndexFunc(containers, func(old Container) bool { return old.ID == c.ID })] = c
		return containers
	})
}

// OpenPaths is where every way of opening a container ends: drop on the window, Dock, Finder, command line, second instance, dialog.
// Each path becomes an offer, good or bad, that the page shows when it is ready. It returns at once.
func (a *App) OpenPaths(paths []string) {
	for _, path := range paths {
		a.work.Add(1)
		go func() {
			defer a.work.Done()
			offer := a.offerFor(path)
			offer.Measuring = offer.Container != nil && offer.Container.SpeedHigh == 0 && a.takeFreeTurn()
			a.mu.Lock()
			a.offers = slices.DeleteFunc(a.offers, func(o Offer) bool { return o.Path == offer.Path })
			a.offers = append(a.offers, offer)
			a.events.post("offer", offer.ID, offer)
			a.mu.Unlock()
			if offer.Measuring {
				a.measureOffered(offer)
			}
		}()
	}
}

func (a *App) offerFor(path string) Offer {
	offer := Offer{ID: uuid.NewString(), Path: path}
	dir, err := ContainerDir(path)
	if err == nil {
		offer.Path = dir
		var c Container
		if c, err = a.opts.Engine.Describe(a.ctx, dir, a.Settings().MemoryLimitBytes); err == nil {
			c.Path = dir
			if c.Name == "" {
				c.Name = strings.TrimSuffix(filepath.Base(dir), ".colibri")
			}
			offer.Container = &c
			return offer
		}
	}
	offer.Error = Opening.say(err)
	return offer
}

// takeFreeTurn takes the turn if nobody has it. While an answer is written nothing is measured, which would disturb both: an offer then
// goes without its speed.
func (a *App) takeFreeTurn() bool {
	select {
	case <-a.turn:
		return true
	default:
		return false
	}
}

// measureOffered finds the expected speed of what is offered, for which the machine has to be measured first: the offer is on the page by
// then, and may already have been taken.
func (a *App) measureOffered(offer Offer) {
	err := a.opts.Engine.Measure(a.ctx, offer.Path)
	a.giveTurn()
	var c Container
	if err == nil {
		c, err = a.opts.Engine.Describe(a.ctx, offer.Path, a.Settings().MemoryLimitBytes)
	}
	if err != nil {
		a.log.Error("expected speed", "path", offer.Path, "error", err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(a.offers, func(o Offer) bool { return o.ID == offer.ID }); i >= 0 {
		measured := *a.offers[i].Container // the page may hold the other
		measured.SpeedLow, measured.SpeedHigh = c.SpeedLow, c.SpeedHigh
		a.offers[i].Container, a.offers[i].Measuring = &measured, false
		a.events.post("offer", offer.ID, a.offers[i])
		return
	}
	if known, ok := a.containerAtLocked(offer.Path); ok && known.SpeedHigh == 0 && c.SpeedHigh > 0 {
		known.SpeedLow, known.SpeedHigh = c.SpeedLow, c.SpeedHigh
		if err := a.replaceContainerLocked(known); err != nil {
			a.log.Error("expected speed", "path", offer.Path, "error", err)
		}
	}
}

// ContainerDir turns what was dropped into the container's folder: a folder stands for itself, a file for the folder it lies in.
func ContainerDir(path string) (string, error) {
	path = strings.TrimSpace(path)
	if !filepath.IsAbs(path) || strings.ContainsAny(path, "\x00\n") {
		return "", fmt.Errorf("%q is not the full path of a file or folder; drop a model's folder from the Finder", path)
	}
	info, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("there is nothing at %s (any more); check that the disk is connected", path)
	}
	if !info.IsDir() {
		path = filepath.Dir(path)
	}
	return filepath.Clean(path), nil
}

// AcceptOffer adds the offered container to the library, in place, and returns its id.
func (a *App) AcceptOffer(id string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	i := slices.IndexFunc(a.offers, func(o Offer) bool { return o.ID == id })
	if i < 0 || a.offers[i].Container == nil {
		return "", errors.New("this offer is gone; drop the model again")
	}
	c := *a.offers[i].Container
	var err error
	if old, ok := a.containerAtLocked(c.Path); ok {
		c.ID, c.Added, c.LastUsed = old.ID, old.Added, old.LastUsed
		err = a.replaceContainerLocked(c)
	} else {
		c.ID, c.Added = uuid.NewString(), time.Now().UnixMilli()
		err = a.changeContainersLocked(func(containers []Container) []Container { return append(containers, c) })
	}
	if err != nil {
		return "", err
	}
	a.offers = slices.Delete(a.offers, i, i+1)
	return c.ID, nil
}

// DismissOffer forgets an offer.
func (a *App) DismissOffer(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.offers = slices.DeleteFunc(a.offers, func(o Offer) bool { return o.ID == id })
}

// RemoveContainer takes a container off the list. Its files stay where they are.
func (a *App) RemoveContainer(id string) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if id == BundledID {
		return errors.New("the bundled model belongs to the program and stays in the list")
	}
	if a.model.ID == id && (a.model.Phase == ModelReady || a.model.Phase == ModelLoading) {
		return errors.New("this model is loaded; choose another one before removing it from the list")
	}
	return a.changeContainersLocked(func(containers []Container) []Container {
		return slices.DeleteFunc(containers, func(c Container) bool { return c.ID == id })
	})
}

// Relocate points a container whose files were moved to where they are now. The new place must hold the same kind of model.
func (a *App) Relocate(id, path string) error {
	offer := a.offerFor(path)
	if offer.Error != "" {
		return sentence(offer.Error)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.containerLocked(id)
	if !ok || c.Bundled {
		return errors.New("this model is not in the list any more")
	}
	if c.Family != "" && (c.Family != offer.Container.Family || c.Bytes != offer.Container.Bytes) {
		return fmt.Errorf("%s holds another model (%s, %d bytes) than %s did; add it as a new one instead",
			offer.Path, offer.Container.Family, offer.Container.Bytes, c.Name)
	}
	moved := *offer.Container
	moved.ID, moved.Name, moved.Added, moved.LastUsed = c.ID, c.Name, c.Added, c.LastUsed
	return a.replaceContainerLocked(moved)
}

func samePath(a, b string) bool {
	if a == b {
		return true
	}
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	return errX == nil && errY == nil && os.SameFile(x, y)
}
