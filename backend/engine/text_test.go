package engine

import (
	"slices"
	"strings"
	"testing"
)

func TestTextOfAnAnswer(t *testing.T) {
	m, hooked := loadHooked(t, bundledDir(t), 1, Options{Drafts: DraftsOff})
	encode := func(text string) []int32 {
		ids, err := m.Tokenizer().Encode(text)
		if err != nil {
			t.Fatal(err)
		}
		return ids
	}
	prompt := encode("Hello")
	open, _ := m.Tokenizer().TokenID("<think>")
	closing, found := m.Tokenizer().TokenID("</think>")
	if !found {
		t.Fatal("the bundled model has no </think>")
	}
	say := func(ids []int32, request Request) (Result, []Piece) {
		hooked.script = slices.Clone(ids)
		request.Prompt, request.MaxTokens, request.Sampling = prompt, len(ids), Greedy()
		r, pieces := ask(t, newSession(t, m), request)
		var all strings.Builder
		for _, p := range pieces {
			all.WriteString(p.Text)
			if strings.ContainsRune(p.Text, '\uFFFD') {
				t.Errorf("half a character was shown: %q", p.Text)
			}
		}
		if all.String() != r.Text {
			t.Errorf("pieces say %q, the result %q", all.String(), r.Text)
		}
		return r, pieces
	}

	for _, text := range []string{"a plain answer.", "naïve 日本語 👍🏽 done", "tabs\tand\n\nlines"} {
		if r, _ := say(encode(text), Request{}); r.Text != text || r.FinishReason != FinishLength {
			t.Errorf("%q became %q (%s)", text, r.Text, r.FinishReason)
		}
	}

	r, _ := say(encode("one two STOP three"), Request{StopStrings: []string{"STOP", "never"}})
	if r.Text != "one two " || r.FinishReason != FinishStop || r.StopID != -1 {
		t.Errorf("a stop string gives %q, %q", r.Text, r.FinishReason)
	}
	if r, _ := say(encode("it ends in ST"), Request{StopStrings: []string{"STOP"}}); r.Text != "it ends in ST" {
		t.Errorf("the beginning of a stop string was lost: %q", r.Text)
	}

	thought, answered := encode("hm, STO"), encode("P it is")
	ids := slices.Concat(thought, []int32{closing}, answered)
	r, pieces := say(ids, Request{ThinkingOpen: true, ThinkStartID: open, ThinkEndID: closing, StopStrings: []string{"STOP"}})
	if r.Text != "hm, STOP it is" {
		t.Errorf("thinking and answer: %q", r.Text)
	}
	var thinking, visible strings.Builder
	for _, p := range pieces {
		if p.Thinking {
			thinking.WriteString(p.Text)
		} else {
			visible.WriteString(p.Text)
		}
	}
	if thinking.String() != "hm, STO" || visible.String() != "P it is" {
		t.Errorf("thinking %q, visible %q", thinking.String(), visible.String())
	}
	// The same characters as plain text are text.
	if r, pieces := say(encode("a</thi"), Request{ThinkingOpen: true, ThinkEndID: closing}); r.Text != "a</thi" || !pieces[len(pieces)-1].Thinking {
		t.Errorf("text that looks like a tag: %q", r.Text)
	}

	loop := slices.Repeat(encode("again")[:1], 100)
	_, pieces = say(loop, Request{})
	notices := 0
	for _, p := range pieces {
		if p.Notice != "" {
			notices++
		}
	}
	if notices != 1 {
		t.Errorf("%d notices about a loop", notices)
	}
}
