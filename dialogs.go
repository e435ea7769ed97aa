//go:build !dev

package main

import (
	"github.com/wailsapp/wails/v2/pkg/runtime"

	"colibri/backend/app"
)

// A dialog is a sheet of the window: on a hidden one it would wait for ever, and every later dialog behind it.

// chooseContainer asks for a folder. A .colibri package is a folder that the Finder shows as a file: without
// TreatPackagesAsDirectories it could not be chosen, and no filter of Wails matches packages.
func (w *window) chooseContainer(title string) (string, error) {
	runtime.Show(w.ctx)
	return runtime.OpenDirectoryDialog(w.ctx, runtime.OpenDialogOptions{Title: title, TreatPackagesAsDirectories: true, ResolvesAliases: true})
}

func (w *window) chooseFile(title string) (string, error) {
	runtime.Show(w.ctx)
	return runtime.OpenFileDialog(w.ctx, runtime.OpenDialogOptions{Title: title, ResolvesAliases: true})
}

func (w *window) choosePlace(title, name string) (string, error) {
	runtime.Show(w.ctx)
	return runtime.SaveFileDialog(w.ctx, runtime.SaveDialogOptions{Title: title, DefaultFilename: name, CanCreateDirectories: true})
}

func developmentBindings(*window) []any { return nil }

func chooseEngine(cacheDir string) app.Engine { return app.RealEngine(cacheDir) }
