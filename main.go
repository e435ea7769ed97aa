// Colibri's window. This package holds what needs a window to exist: options, menus, dialogs, bound methods, the delivery of events. Every
// decision is in backend/app, where it can be tested without one.
package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/wailsapp/wails/v2"
	"github.com/wailsapp/wails/v2/pkg/logger"
	"github.com/wailsapp/wails/v2/pkg/options"
	"github.com/wailsapp/wails/v2/pkg/options/assetserver"
	"github.com/wailsapp/wails/v2/pkg/options/linux"
	"github.com/wailsapp/wails/v2/pkg/options/mac"

	"colibri/backend/app"
	"colibri/backend/bundled"
)

//go:embed all:frontend/dist
var assets embed.FS

func main() {
	err := run()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "colibri:", err)
	var early unstarted
	if errors.As(err, &early) {
		_ = early.show() // where there is no screen, the line above has said it
	}
	os.Exit(1)
}

func run() error {
	// Programs started by the Finder have no locale, and the tool that writes the clipboard then garbles everything beyond ASCII.
	if os.Getenv("LC_ALL") == "" && os.Getenv("LC_CTYPE") == "" && os.Getenv("LANG") == "" {
		os.Setenv("LC_CTYPE", "UTF-8")
	}
	dir, err := dataDir()
	if err != nil {
		return unstarted{err}
	}
	paths := pathArguments(os.Args[1:])
	instance, err := app.Claim(dir, paths)
	if errors.Is(err, app.ErrHandedOver) {
		return nil
	}
	if err != nil {
		return unstarted{err}
	}
	defer instance.Close()
	logFile, err := app.OpenLog(filepath.Join(dir, "logs"))
	if err != nil {
		return unstarted{err}
	}
	defer logFile.Close()
	log := slog.New(slog.NewTextHandler(logFile, nil))

	store, notices, err := app.OpenStore(filepath.Join(dir, "conversations.db"))
	if err != nil {
		return unstarted{err}
	}
	window := newWindow(log, instance)
	core, err := app.New(app.Options{
		DataDir: dir, Engine: chooseEngine(cacheDir(dir)), Store: store, Bundled: bundled.Path,
		Send: window.send, Log: log, Notices: notices,
	})
	if err != nil {
		return unstarted{err}
	}
	window.core = core
	core.OpenPaths(paths)
	go instance.Serve(window.openedAgain)

	remembered := core.Settings().Window
	start := options.Normal
	if remembered.Maximised {
		start = options.Maximised
	}
	return open(&options.App{
		Title:     "Colibri",
		Width:     orDefault(remembered.Width, 1180),
		Height:    orDefault(remembered.Height, 780),
		MinWidth:  app.MinWindowWidth,
		MinHeight: app.MinWindowHeight,
		// Closing the window of a Mac program hides it; the Dock brings it back.
		HideWindowOnClose:  runtime.GOOS == "darwin",
		WindowStartState:   start,
		BackgroundColour:   ground(),
		AssetServer:        &assetserver.Options{Assets: assets, Middleware: core.Middleware},
		Menu:               window.menu(),
		Logger:             wailsLog{log},
		LogLevel:           logger.WARNING,
		LogLevelProduction: logger.WARNING,
		OnStartup:          window.started,
		OnBeforeClose:      window.beforeClose,
		OnShutdown:         window.shutdown,
		Bind:               bound(window),
		// File drops reach Go; the web view itself must not open what is dropped on it.
		DragAndDrop: &options.DragAndDrop{EnableFileDrop: true, DisableWebViewDrop: runtime.GOOS == "darwin"},
		Mac: &mac.Options{
			TitleBar:             mac.TitleBarHiddenInset(),
			WebviewIsTransparent: true,
			WindowIsTranslucent:  true,
			Preferences:          &mac.Preferences{TabFocusesLinks: mac.Enabled, TextInteractionEnabled: mac.Enabled, FullscreenEnabled: mac.Enabled},
			OnFileOpen:           func(path string) { core.OpenPaths([]string{path}) },
		},
		Linux: &linux.Options{ProgramName: "Colibri", WebviewGpuPolicy: linux.WebviewGpuPolicyNever},
	})
}

// open runs the window until it is closed. Wails panics where GTK finds no screen.
func open(o *options.App) (err error) {
	defer func() {
		if r := recover(); r != nil && fmt.Sprint(r) == "failed to init GTK" {
			err = errors.New("there is no screen to open a window on (DISPLAY or WAYLAND_DISPLAY says which); start it in a desktop session, or use the command line: make cli")
		} else if r != nil {
			panic(r)
		}
	}()
	return wails.Run(o)
}

// pathArguments are the files named on the command line.
func pathArguments(args []string) []string {
	here, err := os.Getwd()
	if err != nil {
		here = "/" // as the Finder starts programs; relative paths then lead nowhere, and the window says so
	}
	return app.PathArguments(args, here)
}

// dataDir is where settings, conversations and logs live. COLIBRI_DATA_DIR moves it, for tests and for a second, separate set.
func dataDir() (string, error) {
	dir := os.Getenv("COLIBRI_DATA_DIR")
	if dir == "" {
		base, err := os.UserConfigDir()
		if err != nil {
			return "", fmt.Errorf("there is no place to keep conversations: %w", err)
		}
		dir = filepath.Join(base, "Colibri")
	}
	if !filepath.IsAbs(dir) {
		return "", errors.New("COLIBRI_DATA_DIR must be a full path")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("the data folder cannot be made: %w", err)
	}
	return dir, nil
}

// cacheDir is for what can be computed again. A data folder of its own brings one along: two sets of conversations do not share it.
func cacheDir(dataDir string) string {
	if os.Getenv("COLIBRI_DATA_DIR") != "" {
		return filepath.Join(dataDir, "cache")
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	return filepath.Join(base, "Colibri")
}

// ground is what shows before the page is painted: on macOS the translucent window itself, elsewhere the page's own light colour.
func ground() *options.RGBA {
	if runtime.GOOS == "darwin" {
		return options.NewRGBA(0, 0, 0, 0)
	}
	return options.NewRGB(251, 252, 251)
}

func orDefault(value, fallback int) int {
	if value <= 0 {
		return fallback
	}
	return value
}

// shutdown writes everything down and frees the model, once, whoever asks first: Wails, the system that logs out, or the watchdog.
func (w *window) shutdown(context.Context) {
	w.closing.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), shutdownPatience)
		defer cancel()
		if err := w.instance.StopServing(); err != nil {
			w.log.Error("closing", "error", err)
		}
		if err := w.core.Close(ctx); err != nil {
			w.log.Error("closing", "error", err)
		}
	})
}
