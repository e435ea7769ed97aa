package app

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Settings are what the user chose. They apply at once, except MemoryLimitBytes and Backend, which a loaded model takes up when it is
// loaded again.
type Settings struct {
	MemoryLimitBytes int64    `json:"memoryLimitBytes"` // 0: the planner decides
	Backend          string   `json:"backend"`          // auto, cpu, metal
	Appearance       string   `json:"appearance"`       // system, light, dark
	SystemPrompt     string   `json:"systemPrompt"`     // of new conversations
	Sampling         Sampling `json:"sampling"`         // of conversations without their own
	Presets          []Preset `json:"presets"`
	ExpertSampling   bool     `json:"expertSampling"` // show all sampling values
	ConfirmLinks     bool     `json:"confirmLinks"`
	// What the window remembers.
	LastConversation string `json:"lastConversation"`
	LastModel        string `json:"lastModel"`
	SidebarOpen      bool   `json:"sidebarOpen"`
	ActivityOpen     bool   `json:"activityOpen"`
	Window           Window `json:"window"`
}

// Preset is a named set of sampling values.
type Preset struct {
	Name     string   `json:"name"`
	Sampling Sampling `json:"sampling"`
}

// Window is where the window was. Zero width: the default size, in the middle of the screen.
type Window struct {
	X         int  `json:"x"`
	Y         int  `json:"y"`
	Width     int  `json:"width"`
	Height    int  `json:"height"`
	Maximised bool `json:"maximised"`
}

// MinWindowWidth and MinWindowHeight are the least the layout is made for.
const (
	MinWindowWidth  = 880
	MinWindowHeight = 560
)

func balanced() Sampling {
	return Sampling{Temperature: 0.7, TopP: 0.95, RepetitionPenalty: 1, Seed: -1, MaxTokens: 4096}
}

// DefaultSettings are those of a new installation.
func DefaultSettings() Settings {
	precise, inventive := balanced(), balanced()
	precise.Temperature, precise.TopP = 0, 1
	inventive.Temperature, inventive.TopP, inventive.MinP = 1, 1, 0.05
	return Settings{
		Backend: "auto", Appearance: "system", Sampling: balanced(), ConfirmLinks: true, SidebarOpen: true,
		Presets: []Preset{{"Balanced", balanced()}, {"Precise", precise}, {"Inventive", inventive}},
	}
}

// Validate says in one sentence what is wrong with the values, or nothing.
func (s *Sampling) Validate() error {
	number := func(name string, v, low, high float64) error {
		if math.IsNaN(v) || v < low || v > high {
			return fmt.Errorf("%s must be between %g and %g, not %g", name, low, high, v)
		}
		return nil
	}
	return errors.Join(
		number("temperature", s.Temperature, 0, 5),
		number("top-p", s.TopP, 0.01, 1),
		number("top-k", float64(s.TopK), 0, 1000),
		number("min-p", s.MinP, 0, 1),
		number("repetition penalty", s.RepetitionPenalty, 0.1, 2),
		number("presence penalty", s.PresencePenalty, -2, 2),
		number("seed", float64(s.Seed), -1, 1<<53-1),
		number("longest answer", float64(s.MaxTokens), 1, 1<<20),
	)
}

// Validate says in one sentence what is wrong with the settings, or nothing.
func (s *Settings) Validate() error {
	var problems []error
	oneOf := func(name, value string, allowed ...string) {
		for _, a := range allowed {
			if value == a {
				return
			}
		}
		problems = append(problems, fmt.Errorf("%s must be one of %s, not %q", name, strings.Join(allowed, ", "), value))
	}
	oneOf("backend", s.Backend, "auto", "cpu", "metal")
	oneOf("appearance", s.Appearance, "system", "light", "dark")
	if s.MemoryLimitBytes < 0 {
		problems = append(problems, errors.New("the memory limit cannot be negative"))
	}
	if len(s.SystemPrompt) > 64<<10 {
		problems = append(problems, errors.New("the system prompt is longer than 64 KB"))
	}
	if err := s.Sampling.Validate(); err != nil {
		problems = append(problems, err)
	}
	if len(s.Presets) > 30 {
		problems = append(problems, errors.New("there can be at most 30 presets"))
	}
	names := map[string]bool{}
	for _, p := range s.Presets {
		if strings.TrimSpace(p.Name) == "" || len(p.Name) > 60 {
			problems = append(problems, errors.New("a preset needs a name of at most 60 bytes"))
		}
		if names[p.Name] {
			problems = append(problems, fmt.Errorf("there are two presets named %q", p.Name))
		}
		names[p.Name] = true
		if err := p.Sampling.Validate(); err != nil {
			problems = append(problems, fmt.Errorf("preset %q: %w", p.Name, err))
		}
	}
	return errors.Join(problems...)
}

// readSettings reads the file over the defaults. A damaged file is set aside with a sentence for the user: settings are never
// a reason not to start.
func readSettings(path string) (s Settings, notice string, err error) {
	s = DefaultSettings()
	notice, err = readJSON(path, "settings", &s)
	if err != nil || notice != "" {
		return DefaultSettings(), notice, err
	}
	if problem := s.Validate(); problem != nil {
		aside, err := setAside(path)
		return DefaultSettings(), fmt.Sprintf("The settings were not valid (%v) and were reset; the old ones are in %s.", problem, aside), err
	}
	return s, "", nil
}

// readJSON fills v from the file, which may be absent. What cannot be read is set aside and described in the notice.
func readJSON(path, what string, v any) (notice string, err error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the %s cannot be read: %w", what, err)
	}
	decoder := json.NewDecoder(bytes.NewReader(raw))
	if problem := decoder.Decode(v); problem != nil {
		aside, err := setAside(path)
		return fmt.Sprintf("The file with the %s was damaged and a fresh one was begun; the old one is in %s.", what, aside), err
	}
	return "", nil
}

// setAside renames a damaged file to a name that says when.
func setAside(path string) (string, error) {
	aside := fmt.Sprintf("%s.damaged-%s", path, time.Now().Format("20060102-150405"))
	if err := os.Rename(path, aside); err != nil {
		return "", fmt.Errorf("%s is damaged and cannot be set aside: %w", path, err)
	}
	return aside, nil
}

func writeJSON(path string, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	return replaceFile(path, append(raw, '\n'), 0o600)
}

// replaceFile replaces the file whole: a crash or a full disk leaves the old or the new one, never half. Its errors name the file, not the
// one beside it that is written first.
func replaceFile(path string, content []byte, mode os.FileMode) error {
	err := replace(path, content, mode)
	var reason syscall.Errno
	if errors.As(err, &reason) {
		return &fs.PathError{Op: "write", Path: path, Err: reason}
	}
	return err
}

func replace(path string, content []byte, mode os.FileMode) error {
	tmp, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(tmp.Name())
	_, err = tmp.Write(content)
	if err == nil {
		err = tmp.Chmod(mode)
	}
	if err == nil {
		err = tmp.Sync()
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}

// Settings returns the current ones.
func (a *App) Settings() Settings {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.settings
}

// SaveSettings validates, applies and keeps what the page edited. What the window remembers for itself (see Remember) is left as it is.
func (a *App) SaveSettings(s Settings) error {
	if err := s.Validate(); err != nil {
		return err
	}
	return a.updateSettings(func(old *Settings) {
		s.Window, s.LastModel = old.Window, old.LastModel
		*old = s
	})
}

// RememberWindow keeps where the window was.
func (a *App) RememberWindow(w Window) error {
	return a.updateSettings(func(s *Settings) { s.Window = w })
}

// updateSettings changes a copy, writes it and takes it up; a failed write leaves the settings as they were.
func (a *App) updateSettings(change func(*Settings)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.updateSettingsLocked(change)
}

func (a *App) updateSettingsLocked(change func(*Settings)) error {
	s := a.settings
	change(&s)
	if err := writeJSON(filepath.Join(a.opts.DataDir, "settings.json"), s); err != nil {
		return fmt.Errorf("the settings could not be kept: %w", err)
	}
	a.settings = s
	// Settings can be longer than an event (the system prompt): the page fetches them.
	a.events.post("settings", "settings", nil)
	return nil
}
