package app

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"colibri/backend/chat/jinja"
	"colibri/backend/chat/store"
	"colibri/backend/engine"
	"colibri/backend/residency"
)

// This file is the one place where errors become what the window says: what happened, what was kept, and what to do. Packages below say
// what happened, to which file; only here is it known what the user was doing.

// Activity is what the program was doing for the user when something failed. Every call that the page can make has one.
type Activity struct {
	kept    string // what the failure did not touch
	advice  string // where no remedy below knows better
	missing string // what to do about a file that is not there; if empty, it is looked for in Colibri's data folder
}

const (
	anew     = "Try again; if the same happens again, quit Colibri and start it anew."
	locate   = "Connect the disk the files are on, or say where they are now with Locate in the list of models."
	dataGone = "Connect the disk that Colibri's data folder is on, then quit Colibri and start it anew."
)

var (
	Starting = Activity{
		kept:    "Your chats and settings are on disk as they were.",
		advice:  "Start Colibri again; if the same happens again, restart the computer.",
		missing: "Connect the disk that Colibri's data folder is on, then start Colibri again.",
	}
	Answering = Activity{
		kept:    "The question and what was written so far are kept.",
		advice:  "Ask for another answer; if the same happens again, load the model again or choose another one.",
		missing: locate,
	}
	Loading = Activity{
		kept:    "Your chats are kept, and nothing on disk was changed.",
		advice:  "Try again, or choose another model.",
		missing: locate,
	}
	Opening = Activity{
		kept:    "Nothing was added to the list or changed on disk.",
		advice:  "Choose the model's folder again, or copy the model once more from where it came.",
		missing: locate,
	}
	Listing = Activity{
		kept:   "The list of models is as it was, and no file was touched.",
		advice: "Try again, or add the model once more with Open.",
	}
	Reading = Activity{
		kept:   "Nothing was changed.",
		advice: anew,
	}
	Asking = Activity{
		kept:   "What you typed and all that was written before are kept.",
		advice: "Ask again; if the same happens again, quit Colibri and start it anew.",
	}
	Stopping = Activity{
		kept:   "What was written so far is kept.",
		advice: "Press Stop again; if the answer goes on, quit Colibri, which keeps it too.",
	}
	KeepingAnswer = Activity{
		kept:   "The answer is still in the window.",
		advice: "Copy it before you quit Colibri.",
	}
	Organising = Activity{
		kept:   "Your chats are as they were.",
		advice: anew,
	}
	Drafting = Activity{
		kept:   "What you typed is still in the window, but not on disk.",
		advice: "Go on typing, which tries again, or copy it before you quit Colibri.",
	}
	Configuring = Activity{
		kept:   "This chat's instructions and values are as they were, and yours are still in the dialog.",
		advice: "Correct what is wrong, then choose Keep again.",
	}
	Setting = Activity{
		kept:   "The settings are as they were.",
		advice: "Correct what is wrong, then try again.",
	}
	Exporting = Activity{
		kept:    "The chat itself is untouched.",
		advice:  "Choose another place, then try again.",
		missing: "Choose a folder that is there, then try again.",
	}
	Importing = Activity{
		kept:    "Nothing was imported, and your chats are as they were.",
		advice:  "Choose a file that Colibri exported as JSON, or export the chat once more where it came from.",
		missing: "Choose the file where it is now.",
	}
	Showing = Activity{
		kept:    "Nothing was opened or changed.",
		advice:  "Open it by yourself, in the browser or the file manager.",
		missing: "Connect the disk it is on, then try again.",
	}
	Copying = Activity{
		kept:   "The text is still in the chat.",
		advice: "Select it and copy it with the keyboard, or export the chat.",
	}
)

// remedy is what to do about a kind of error, whatever the activity.
type remedy struct {
	kind    string // for tests: the Go name of the error value or type, or what the system calls it
	matches func(error) bool
	advice  string
}

func is(targets ...error) func(error) bool {
	return func(err error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
}

func as[T error](err error) bool {
	var t T
	return errors.As(err, &t)
}

// remedies are in order of precedence: what the system says about a disk or about memory explains what the layers above say.
var remedies = []remedy{
	{"disk full", is(syscall.ENOSPC, syscall.EDQUOT), "Free some space on the disk, then try again."},
	{"not permitted", is(fs.ErrPermission, syscall.EROFS), "Allow Colibri to use this folder (on a Mac: System Settings, Privacy & Security, Files and Folders), then try again."},
	{"missing file", is(fs.ErrNotExist), ""}, // depends on what was looked for: Activity.missing
	{"disk error", is(syscall.EIO, syscall.ENXIO, syscall.ENODEV), "Check that the disk is connected and sound, then try again; if the file stays unreadable, copy the model once more."},
	{"out of memory", is(syscall.ENOMEM), "Close other programs or lower the memory limit in Settings, then try again."},
	{"too many files", is(syscall.EMFILE, syscall.ENFILE), "Close other programs, or quit Colibri and start it anew."},
	{"engine.NumberError", as[*engine.NumberError], "Ask again; if the same happens again, the model's files are damaged: copy the model once more, or choose CPU in Settings to see whether the graphics processor is at fault."},
	{"jinja.RaisedError", as[*jinja.RaisedError], "The model's own chat template refuses this conversation: take out the system prompt or shorten the chat, then ask again."},
	{"residency.ErrClosed", is(residency.ErrClosed), "The model was unloaded meanwhile; ask again and it is loaded."},
	{"store.ErrGone", is(store.ErrGone), "It was deleted; choose another chat, or begin a new one."},
	{"app.errClosing", is(errClosing), "Start Colibri again to go on."},
	{"interrupted", is(context.Canceled, context.DeadlineExceeded), "It was stopped; try again when you want it."},
}

// sentence is an error that already says all three things.
type sentence string

func (s sentence) Error() string { return string(s) }

// Refuse is what a call of the page fails with: the sentence for the window. No error stays none.
func (doing Activity) Refuse(err error) error {
	if err == nil {
		return nil
	}
	return sentence(doing.say(err))
}

// say makes the sentence for the window. Advice comes from the error's own text, from the kind of error, or from the activity.
func (doing Activity) say(err error) string {
	var said sentence
	if errors.As(err, &said) {
		return string(said)
	}
	what, advice := ownAdvice(err.Error())
	if advice == "" {
		advice = doing.advice
		for _, r := range remedies {
			if r.matches(err) {
				advice = cmp.Or(r.advice, doing.missing, dataGone)
				break
			}
		}
	}
	if parts := splitText(what, maxReasonBytes); len(parts) > 1 {
		what = parts[0] + " …"
	}
	return asSentence(what) + " " + doing.kept + " " + advice
}

// maxReasonBytes keeps a sentence within an event, advice included: a damaged container may have hundreds of things to complain about.
const maxReasonBytes = 1500

// ownAdvice cuts off what an error's text itself advises: by this project's custom its last part, after a semicolon, an imperative.
func ownAdvice(text string) (what, advice string) {
	what, last := text, ""
	if i := strings.LastIndex(text, "; "); i >= 0 {
		what, last = text[:i], text[i+2:]
	}
	word, _, _ := strings.Cut(last, " ")
	if !slices.Contains(imperatives, word) {
		return text, ""
	}
	return what, asSentence(last)
}

// imperatives are the words with which the advice in errors begins. A test finds words that are missing here.
var imperatives = strings.Fields("add ask check choose close connect convert copy delete download drop free get give load lower move put quit raise " +
	"remove replace restart run shorten start stop try update use wait")

// asSentence begins with a capital, unless the first word is a name of something, and ends with a full stop. Errors that were joined
// are joined by semicolons: the window shows one line.
func asSentence(text string) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	text = strings.TrimRight(strings.TrimSpace(text), ".;: ")
	if text == "" {
		return "Something went wrong and gave no reason."
	}
	word, _, _ := strings.Cut(text, " ")
	if plain := strings.TrimRight(word, ":,;"); strings.IndexFunc(plain, func(r rune) bool { return !unicode.IsLetter(r) && r != '\'' }) < 0 {
		r, n := utf8.DecodeRuneInString(text)
		text = string(unicode.ToUpper(r)) + text[n:]
	}
	if strings.HasSuffix(text, "?") || strings.HasSuffix(text, "!") {
		return text
	}
	return text + "."
}
