// Package jinja runs chat templates: the part of the Jinja2 language that Hugging Face offers them, with Python's semantics.
//
// A template is a program that came with a model from somewhere. It sees the values it is given and nothing else, cannot
// change them, and is bounded in steps, nesting and text. The package knows nothing of chats, tokens or files.
//
// It exists because the Go libraries fail on published templates: gonja 2.9 does not parse (a if b else c), confuses none
// with undefined, sorts dictionaries, and indexes strings by bytes.
package jinja

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

const (
	maxSourceBytes = 256 << 10 // the longest template in use has 30 KB
	maxDepth       = 300       // of expressions, blocks and values in each other
	maxCalls       = 60        // of macros in each other
	maxSteps       = 1_000_000 // a message costs about 100
	maxTextBytes   = 256 << 20 // written or joined, all together; a prompt is at most a few megabytes
)

// Template is a parsed template, safe for use by any number of goroutines.
type Template struct{ body []statement }

// Parse reads a template.
func Parse(source string) (*Template, error) {
	if len(source) > maxSourceBytes {
		return nil, fmt.Errorf("it has %d bytes, more than the %d that any template needs", len(source), maxSourceBytes)
	}
	tokens, err := lex(source)
	if err != nil {
		return nil, err
	}
	body, err := parse(tokens)
	if err != nil {
		return nil, err
	}
	return &Template{body}, nil
}

// RaisedError is what a template says with raise_exception.
type RaisedError struct{ Message string }

func (e *RaisedError) Error() string { return e.Message }

// Render runs the template. Variables may hold nil, bool, int, float64, string, []string, []any, *List and *Dict.
func (t *Template) Render(variables map[string]any) (string, error) {
	r := &render{out: &strings.Builder{}}
	globals := &scope{names: map[string]value{
		"range": function(rangeOf), "namespace": function(newNamespace), "dict": function(newDict),
		"raise_exception": function(raise), "strftime_now": function(strftimeNow),
	}}
	s := globals.inner()
	for name, v := range variables {
		s.names[name] = fromGo(v)
	}
	if err := r.runAll(t.body, s); err != nil {
		return "", err
	}
	return r.out.String(), nil
}

// render is the state of one run.
type render struct {
	out   *strings.Builder
	calls int
	steps int
	bytes int
}

// step counts one evaluation.
func (r *render) step() error {
	if r.steps++; r.steps > maxSteps {
		return fmt.Errorf("it was not done after %d steps", maxSteps)
	}
	return nil
}

// spend counts text that is about to be made.
func (r *render) spend(bytes int) error {
	if r.bytes += bytes; bytes < 0 || r.bytes > maxTextBytes {
		return fmt.Errorf("it makes more than %d MB of text", maxTextBytes>>20)
	}
	return nil
}

// capture returns what run writes.
func (r *render) capture(run func() error) (string, error) {
	outer := r.out
	r.out = &strings.Builder{}
	err := run()
	text := r.out.String()
	r.out = outer
	return text, err
}

func (r *render) runAll(body []statement, s *scope) error {
	for _, statement := range body {
		if err := statement.run(r, s); err != nil {
			return err
		}
	}
	return nil
}

// scope holds the names that a loop, macro or with block sees.
type scope struct {
	names map[string]value
	outer *scope
}

func (s *scope) inner() *scope { return &scope{names: map[string]value{}, outer: s} }

func (s *scope) get(name string) value {
	for ; s != nil; s = s.outer {
		if v, ok := s.names[name]; ok {
			return v
		}
	}
	return undefined{name}
}

var (
	errBreak    = errors.New("break outside a loop")
	errContinue = errors.New("continue outside a loop")
)

// lineError says where an error happened.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("line %d: %v", e.line, e.err) }
func (e *lineError) Unwrap() error { return e.err }

// now is the clock of strftime_now.
var now = time.Now
