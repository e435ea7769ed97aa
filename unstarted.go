package main

import (
	"html"
	"net/http"

	"github.com/wailsapp/wails/v2/pkg/options"
	"github.com/wailsapp/wails/v2/pkg/options/assetserver"
	"github.com/wailsapp/wails/v2/pkg/options/linux"
	"github.com/wailsapp/wails/v2/pkg/options/mac"

	"colibri/backend/app"
)

// unstarted is an error that came before there was a window. Who opened the program in the Finder sees no terminal.
type unstarted struct{ error }

const unstartedPage = `<!doctype html><html lang="en"><meta charset="utf-8"><title>Colibri</title>
<style>
:root { color-scheme: light dark; font: 15px/1.5 -apple-system, system-ui, sans-serif; background: Canvas; color: CanvasText }
body { margin: 32px 36px; cursor: default }
h1 { margin: 0 0 10px; font-size: 19px }
p { margin: 0; overflow-wrap: anywhere; user-select: text; -webkit-user-select: text }
</style><h1>Colibri could not start</h1><p role="alert">`

// show opens a small window that says what happened, until it is closed. It has no script and nothing to press.
func (e unstarted) show() error {
	page := []byte(unstartedPage + html.EscapeString(app.Starting.Refuse(e.error).Error()) + "</p></html>")
	return open(&options.App{
		Title: "Colibri", Width: 540, Height: 300, DisableResize: true, BackgroundColour: options.NewRGB(255, 255, 255),
		AssetServer: &assetserver.Options{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset=utf-8")
			_, _ = w.Write(page)
		})},
		Mac:   &mac.Options{},
		Linux: &linux.Options{ProgramName: "Colibri", WebviewGpuPolicy: linux.WebviewGpuPolicyNever},
	})
}
