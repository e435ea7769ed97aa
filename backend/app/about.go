package app

import (
	"errors"
	"runtime"
	"runtime/debug"

	"colibri/backend/version"
)

// About is what the about box says.
type About struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	DataDir  string `json:"dataDir"`
}

// About says which program this is.
func (a *App) About() About {
	about := About{Version: version.Number, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, DataDir: a.opts.DataDir}
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" && len(s.Value) >= 9 {
				about.Version += " (" + s.Value[:9] + ")"
			}
		}
	}
	return about
}

// DataDir is where settings, conversations and logs are.
func (a *App) DataDir() string { return a.opts.DataDir }

// ContainerPath is where a container of the library lies.
func (a *App) ContainerPath(id string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c, ok := a.containerLocked(id)
	if !ok || c.Path == "" {
		return "", errors.New("this model has no folder yet; load it once")
	}
	return c.Path, nil
}

// MenuCommand passes on what was chosen in the menu bar.
func (a *App) MenuCommand(name string) { a.events.post("menu", "", name) }
