package main

import (
	"errors"
	"fmt"
	"net/url"
	"os/exec"
	goruntime "runtime"
	"runtime/debug"

	"github.com/wailsapp/wails/v2/pkg/runtime"

	"colibri/backend/app"
)

// App is what the page can call. Each method goes through guard, because a panic in a bound method or a result that JSON cannot hold
// ends the whole program; each one that changes something carries a Command, because Wails runs calls in no particular order.
type App struct{ w *window }

func bound(w *window) []any { return append([]any{&App{w}}, developmentBindings(w)...) }

// What a call fails with is a sentence for the window: what happened, what doing left untouched, what to do.
func guard[T any](w *window, doing app.Activity, call func() (T, error)) (out T, err error) {
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("a bound method panicked", "panic", p, "stack", string(debug.Stack()))
			err = doing.Refuse(fmt.Errorf("something went wrong inside Colibri (%v), and the log has the details", p))
		}
	}()
	out, err = call()
	return app.Finite(out), doing.Refuse(err)
}

// change runs a call that changes something in its turn.
func change[T any](w *window, doing app.Activity, c app.Command, call func() (T, error)) (T, error) {
	return guard(w, doing, func() (out T, err error) {
		err = w.core.Do(c, func() error {
			var problem error
			out, problem = call()
			return problem
		})
		return out, err
	})
}

func changed(w *window, doing app.Activity, c app.Command, call func() error) error {
	_, err := change(w, doing, c, func() (struct{}, error) { return struct{}{}, call() })
	return err
}

// LoadModel begins to load a container of the library.
func (a *App) LoadModel(c app.Command, id string) error {
	return changed(a.w, app.Loading, c, func() error { return a.w.core.LoadModel(id) })
}

// UnloadModel frees the model or cancels its loading.
func (a *App) UnloadModel(c app.Command) error {
	return changed(a.w, app.Loading, c, a.w.core.UnloadModel)
}

// ReloadModel loads the current model again, with the settings of now.
func (a *App) ReloadModel(c app.Command) error {
	return changed(a.w, app.Loading, c, a.w.core.ReloadModel)
}

// Generate begins an answer.
func (a *App) Generate(c app.Command, r app.GenerateRequest) (app.Generated, error) {
	return change(a.w, app.Asking, c, func() (app.Generated, error) { return a.w.core.Generate(r) })
}

// Stop ends an answer.
func (a *App) Stop(c app.Command, conversation string) error {
	return changed(a.w, app.Stopping, c, func() error { a.w.core.Stop(conversation); return nil })
}

// Stats are the figures of this moment.
func (a *App) Stats() (app.Stats, error) {
	return guard(a.w, app.Reading, func() (app.Stats, error) { return a.w.core.Stats(), nil })
}

// SetVisible says whether the page is on the screen.
func (a *App) SetVisible(visible bool) error {
	_, err := guard(a.w, app.Reading, func() (struct{}, error) { a.w.core.SetVisible(visible); return struct{}{}, nil })
	return err
}

// NewConversation makes an empty conversation.
func (a *App) NewConversation(c app.Command) (app.Conversation, error) {
	return change(a.w, app.Organising, c, a.w.core.NewConversation)
}

// Rename gives a conversation a title.
func (a *App) Rename(c app.Command, id, title string) error {
	return changed(a.w, app.Organising, c, func() error { return a.w.core.Rename(id, title) })
}

// Pin keeps a conversation at the top.
func (a *App) Pin(c app.Command, id string, pinned bool) error {
	return changed(a.w, app.Organising, c, func() error { return a.w.core.Pin(id, pinned) })
}

// Delete removes a conversation, until Restore.
func (a *App) Delete(c app.Command, id string) error {
	return changed(a.w, app.Organising, c, func() error { return a.w.core.Delete(id) })
}

// Restore undoes Delete.
func (a *App) Restore(c app.Command, id string) error {
	return changed(a.w, app.Organising, c, func() error { return a.w.core.Restore(id) })
}

// SaveDraft keeps what was typed.
func (a *App) SaveDraft(c app.Command, id, text string) error {
	return changed(a.w, app.Drafting, c, func() error { return a.w.core.SaveDraft(id, text) })
}

// Configure sets a conversation's own prompt and sampling.
func (a *App) Configure(c app.Command, id, systemPrompt string, sampling *app.Sampling) error {
	return changed(a.w, app.Configuring, c, func() error { return a.w.core.Configure(id, systemPrompt, sampling) })
}

// SelectBranch shows another version of a message.
func (a *App) SelectBranch(c app.Command, id, message string) error {
	return changed(a.w, app.Organising, c, func() error { return a.w.core.SelectBranch(id, message) })
}

// Search looks through all conversations.
func (a *App) Search(query string) ([]app.Hit, error) {
	return guard(a.w, app.Reading, func() ([]app.Hit, error) { return a.w.core.Search(query) })
}

// MeasureContext says how much of the context a conversation uses, with a question below parent added.
func (a *App) MeasureContext(conversation, parent, text string) (app.ContextUse, error) {
	return guard(a.w, app.Reading, func() (app.ContextUse, error) { return a.w.core.MeasureContext(conversation, parent, text) })
}

// Settings are the user's choices.
func (a *App) Settings() (app.Settings, error) {
	return guard(a.w, app.Reading, func() (app.Settings, error) { return a.w.core.Settings(), nil })
}

// SaveSettings takes up edited settings.
func (a *App) SaveSettings(c app.Command, s app.Settings) error {
	return changed(a.w, app.Setting, c, func() error { return a.w.core.SaveSettings(s) })
}

// RememberWindow keeps where the window is now.
func (a *App) RememberWindow() error {
	_, err := guard(a.w, app.Reading, func() (struct{}, error) { a.w.remember(); return struct{}{}, nil })
	return err
}

// Containers lists the models.
func (a *App) Containers() ([]app.Container, error) {
	return guard(a.w, app.Reading, func() ([]app.Container, error) { return a.w.core.Containers(), nil })
}

// OpenContainer asks for a model's folder and offers what is in it.
func (a *App) OpenContainer() error {
	_, err := guard(a.w, app.Opening, func() (struct{}, error) {
		path, err := a.w.chooseContainer("Open a model")
		if err == nil && path != "" {
			a.w.core.OpenPaths([]string{path})
		}
		return struct{}{}, err
	})
	return err
}

// AcceptOffer adds an offered container to the library and returns its id.
func (a *App) AcceptOffer(c app.Command, id string) (string, error) {
	return change(a.w, app.Opening, c, func() (string, error) { return a.w.core.AcceptOffer(id) })
}

// DismissOffer forgets an offered container.
func (a *App) DismissOffer(c app.Command, id string) error {
	return changed(a.w, app.Listing, c, func() error { a.w.core.DismissOffer(id); return nil })
}

// RemoveContainer takes a container off the list.
func (a *App) RemoveContainer(c app.Command, id string) error {
	return changed(a.w, app.Listing, c, func() error { return a.w.core.RemoveContainer(id) })
}

// LocateContainer asks where a missing container is now.
func (a *App) LocateContainer(id string) error {
	_, err := guard(a.w, app.Listing, func() (struct{}, error) {
		path, err := a.w.chooseContainer("Where is this model now?")
		if err == nil && path != "" {
			err = a.w.core.Relocate(id, path)
		}
		return struct{}{}, err
	})
	return err
}

// Export writes a conversation to a file the user chooses, as "markdown" or "json". It returns the path, "" if none was chosen.
func (a *App) Export(conversation, format string) (string, error) {
	return guard(a.w, app.Exporting, func() (string, error) {
		name, content, err := a.w.core.Export(conversation, format)
		if err != nil {
			return "", err
		}
		path, err := a.w.choosePlace("Export the chat", name)
		if err != nil || path == "" {
			return "", err
		}
		return path, app.WriteExport(path, content)
	})
}

// Import reads conversations from a JSON file the user chooses. It returns how many there were.
func (a *App) Import() (int, error) {
	return guard(a.w, app.Importing, func() (int, error) {
		path, err := a.w.chooseFile("Import chats")
		if err != nil || path == "" {
			return 0, err
		}
		return a.w.core.Import(path)
	})
}

// OpenLink shows a web address in the browser. Anything but http and https is refused: the system's opener would take a path or an option too.
func (a *App) OpenLink(address string) error {
	_, err := guard(a.w, app.Showing, func() (struct{}, error) {
		u, err := url.Parse(address)
		if err != nil || (u.Scheme != "https" && u.Scheme != "http") || u.Host == "" {
			return struct{}{}, errors.New("only web addresses (https and http) can be opened; check the address")
		}
		runtime.BrowserOpenURL(a.w.ctx, u.String())
		return struct{}{}, nil
	})
	return err
}

// RevealData shows the data folder in the file manager.
func (a *App) RevealData() error {
	_, err := guard(a.w, app.Showing, func() (struct{}, error) { return struct{}{}, reveal(a.w.core.DataDir()) })
	return err
}

// RevealContainer shows a model's folder in the file manager.
func (a *App) RevealContainer(id string) error {
	_, err := guard(a.w, app.Showing, func() (struct{}, error) {
		path, err := a.w.core.ContainerPath(id)
		if err != nil {
			return struct{}{}, err
		}
		return struct{}{}, reveal(path)
	})
	return err
}

func reveal(path string) error {
	cmd := exec.Command("xdg-open", path)
	if goruntime.GOOS == "darwin" {
		cmd = exec.Command("/usr/bin/open", "-R", path)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the folder %s cannot be shown: %w", path, err)
	}
	go func() { _ = cmd.Wait() }()
	return nil
}

// CopyText puts text on the clipboard.
func (a *App) CopyText(text string) error {
	_, err := guard(a.w, app.Copying, func() (struct{}, error) { return struct{}{}, runtime.ClipboardSetText(a.w.ctx, text) })
	return err
}

// ReportError writes what went wrong in the page to the log.
func (a *App) ReportError(text string) error {
	_, err := guard(a.w, app.Reading, func() (struct{}, error) {
		a.w.log.Error("page", "error", text[:min(len(text), 4000)])
		return struct{}{}, nil
	})
	return err
}

// About says which program this is.
func (a *App) About() (app.About, error) {
	return guard(a.w, app.Reading, func() (app.About, error) { return a.w.core.About(), nil })
}
