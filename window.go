package main

import (
	"context"
	"log/slog"
	"os"
	goruntime "runtime"
	"strings"
	"sync"
	"time"

	"github.com/wailsapp/wails/v2/pkg/menu"
	"github.com/wailsapp/wails/v2/pkg/menu/keys"
	"github.com/wailsapp/wails/v2/pkg/runtime"

	"colibri/backend/app"
)

const (
	// shutdownPatience is how long the engine gets to come to the end of what it is computing.
	shutdownPatience = 5 * time.Second
	// quitPatience is how long the window system gets to end its loop: on macOS Wails stops it from another thread, which takes effect only
	// with the next event.
	quitPatience = 3 * time.Second
)

// window is the link between the app and the screen.
type window struct {
	core     *app.App
	log      *slog.Logger
	instance *app.Instance
	ctx      context.Context // Wails' own; valid once ready is closed
	ready    chan struct{}
	closing  sync.Once
}

func newWindow(log *slog.Logger, instance *app.Instance) *window {
	return &window{log: log, instance: instance, ready: make(chan struct{})}
}

func (w *window) started(ctx context.Context) {
	w.ctx = ctx
	close(w.ready)
	w.installHooks()
	// Not runtime.OnFileDrop: it panics on an event with fewer than three values, which any script in the page can send.
	runtime.EventsOn(ctx, "wails:file-drop", func(data ...any) {
		if len(data) != 3 {
			return
		}
		if paths, ok := data[2].([]string); ok {
			w.core.OpenPaths(dropped(paths))
		}
	})
	remembered := w.core.Settings().Window
	if remembered.Width > 0 && !remembered.Maximised {
		runtime.WindowSetPosition(ctx, remembered.X, remembered.Y)
	}
}

// dropped leaves out the empty entries that Wails reports for dropped text.
func dropped(paths []string) []string {
	var out []string
	for _, p := range paths {
		if strings.TrimSpace(p) != "" {
			out = append(out, p)
		}
	}
	return out
}

// send delivers one event to every page. Events before the window exists are not lost to anyone: a page begins with the whole state.
func (w *window) send(e app.Event) {
	<-w.ready
	runtime.EventsEmit(w.ctx, "colibri", e)
}

// openedAgain is called when the program was started a second time.
func (w *window) openedAgain(paths []string) {
	w.core.OpenPaths(paths)
	<-w.ready
	runtime.Show(w.ctx)
	runtime.WindowUnminimise(w.ctx)
}

func (w *window) beforeClose(ctx context.Context) (prevent bool) {
	w.remember()
	time.AfterFunc(quitPatience, func() {
		w.shutdown(ctx) // waits for the one under way
		os.Exit(0)
	})
	return false
}

// remember keeps where the window is.
func (w *window) remember() {
	var at app.Window
	at.X, at.Y = runtime.WindowGetPosition(w.ctx)
	at.Width, at.Height = runtime.WindowGetSize(w.ctx)
	at.Maximised = runtime.WindowIsMaximised(w.ctx)
	if at.Width < app.MinWindowWidth/2 || runtime.WindowIsMinimised(w.ctx) {
		return // no place to come back to
	}
	if err := w.core.RememberWindow(at); err != nil {
		w.log.Error("window place", "error", err)
	}
}

// menu is the menu bar of macOS. Elsewhere the page answers the same keys itself and the window needs no bar.
func (w *window) menu() *menu.Menu {
	if goruntime.GOOS != "darwin" {
		return nil
	}
	command := func(name string) menu.Callback {
		return func(*menu.CallbackData) { w.core.MenuCommand(name) }
	}
	bar := menu.NewMenu()
	own := bar.AddSubmenu("Colibri") // the first menu carries the program's name
	own.AddText("About Colibri", nil, command("about"))
	own.AddSeparator()
	own.AddText("Settings…", keys.CmdOrCtrl(","), command("settings"))
	own.AddSeparator()
	own.AddText("Hide Colibri", keys.CmdOrCtrl("h"), func(*menu.CallbackData) { runtime.Hide(w.ctx) })
	own.AddSeparator()
	own.AddText("Quit Colibri", keys.CmdOrCtrl("q"), func(*menu.CallbackData) { runtime.Quit(w.ctx) })

	file := bar.AddSubmenu("File")
	file.AddText("New Chat", keys.CmdOrCtrl("n"), command("new-chat"))
	file.AddText("Open Model…", keys.CmdOrCtrl("o"), command("open"))
	file.AddSeparator()
	file.AddText("Export Chat…", keys.Combo("e", keys.CmdOrCtrlKey, keys.ShiftKey), command("export"))
	file.AddText("Import Chats…", nil, command("import"))
	file.AddSeparator()
	file.AddText("Close Window", keys.CmdOrCtrl("w"), func(*menu.CallbackData) { runtime.Hide(w.ctx) })

	bar.Append(menu.EditMenu()) // without it Cmd-C, V, X, A and Z do not reach the page

	view := bar.AddSubmenu("View")
	view.AddText("Search Chats", keys.CmdOrCtrl("f"), command("search"))
	view.AddText("Sidebar", keys.CmdOrCtrl("b"), command("sidebar"))
	view.AddText("Activity", keys.CmdOrCtrl("i"), command("activity"))
	view.AddText("Choose Model", keys.CmdOrCtrl("m"), command("models"))
	view.AddSeparator()
	view.AddText("Full Screen", keys.Combo("f", keys.CmdOrCtrlKey, keys.ControlKey), func(*menu.CallbackData) {
		// The full-screen item of Wails' window menu calls a method that windows do not have.
		if runtime.WindowIsFullscreen(w.ctx) {
			runtime.WindowUnfullscreen(w.ctx)
		} else {
			runtime.WindowFullscreen(w.ctx)
		}
	})

	chat := bar.AddSubmenu("Chat")
	chat.AddText("Stop", keys.CmdOrCtrl("."), command("stop"))
	chat.AddText("Another Answer", keys.CmdOrCtrl("r"), command("regenerate"))
	chat.AddText("Copy Last Answer", keys.Combo("c", keys.CmdOrCtrlKey, keys.ShiftKey), command("copy-last"))

	shown := bar.AddSubmenu("Window")
	shown.AddText("Minimise", nil, func(*menu.CallbackData) { runtime.WindowMinimise(w.ctx) })
	shown.AddText("Zoom", nil, func(*menu.CallbackData) { runtime.WindowToggleMaximise(w.ctx) })

	help := bar.AddSubmenu("Help")
	help.AddText("Keyboard Shortcuts", keys.CmdOrCtrl("/"), command("shortcuts"))
	return bar
}

// wailsLog writes Wails' own messages to our log.
type wailsLog struct{ log *slog.Logger }

func (l wailsLog) Print(m string)   { l.log.Info(m, "from", "wails") }
func (l wailsLog) Trace(m string)   { l.log.Debug(m, "from", "wails") }
func (l wailsLog) Debug(m string)   { l.log.Debug(m, "from", "wails") }
func (l wailsLog) Info(m string)    { l.log.Info(m, "from", "wails") }
func (l wailsLog) Warning(m string) { l.log.Warn(m, "from", "wails") }
func (l wailsLog) Error(m string)   { l.log.Error(m, "from", "wails") }
func (l wailsLog) Fatal(m string)   { l.log.Error(m, "from", "wails") }
