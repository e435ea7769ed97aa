package chat

import (
	"errors"
	"slices"
	"strings"

	"colibri/backend/tokenizer"
)

// Options of a prompt.
type Options struct {
	Thinking *bool // nil: as the template decides
	Continue bool  // the last message is an assistant's, to be taken up where it ends
}

// Prompt is what the engine is given for one answer.
type Prompt struct {
	IDs          []int32
	ThinkingOpen bool // the answer begins inside the model's thinking, as its tokens mark it
	// ThinkStartID and ThinkEndID are the tokens around thinking; 0 where the vocabulary has none.
	ThinkStartID, ThinkEndID int32
	// Splitter, where it is not nil, is for the generated text: the template writes thinking, and the vocabulary has no tokens for it.
	Splitter *Splitter
	StopIDs  []int32
}

// Prompt makes the prompt for the answer that follows messages. Control tokens in it come from the template alone.
func (t *Template) Prompt(messages []Message, o Options) (Prompt, error) {
	var begun Message
	if o.Continue {
		last := len(messages) - 1
		if last < 0 || messages[last].Role != Assistant {
			return Prompt{}, errors.New("there is no answer to continue")
		}
		messages, begun = messages[:last], messages[last]
	}
	options := map[string]any{"add_generation_prompt": true}
	if o.Thinking != nil {
		options["enable_thinking"] = *o.Thinking // Qwen, GLM
		options["thinking"] = *o.Thinking        // DeepSeek
	}
	segments, err := t.render(messages, options)
	if err != nil {
		return Prompt{}, err
	}
	if o.Continue {
		segments = t.resume(segments, begun)
	}
	ids, err := t.tokenizer.EncodeSegments(segments)
	if err != nil {
		return Prompt{}, err
	}
	p := Prompt{IDs: ids, ThinkStartID: t.thinkStart, ThinkEndID: t.thinkEnd, StopIDs: slices.Clone(t.stopIDs)}
	switch {
	case t.thinkStart != 0 && t.thinkEnd != 0:
		p.ThinkingOpen = t.thinkingOpen(ids)
	case strings.Contains(t.source, thinkStart) || strings.Contains(t.source, thinkEnd):
		p.Splitter = NewSplitter(t.openInText(segments))
	}
	return p, nil
}

// resume appends the beginning of an answer exactly as it was generated, rather than as the template shows past answers: the
// model goes on from the very state it was in, and the engine finds its tokens in memory.
func (t *Template) resume(segments []tokenizer.Segment, begun Message) []tokenizer.Segment {
	add := func(text string, special bool) {
		if text != "" {
			segments = append(segments, tokenizer.Segment{Text: text, Special: special})
		}
	}
	open := t.openInText(segments)
	if !open && begun.Thinking != "" {
		add(thinkStart, true)
		open = true
	}
	add(begun.Thinking, false)
	if open && begun.Text != "" {
		add(thinkEnd, true)
	}
	add(begun.Text, false)
	return segments
}

// thinkingOpen tells whether the prompt ends inside thinking.
func (t *Template) thinkingOpen(ids []int32) bool {
	for i := len(ids) - 1; i >= 0; i-- {
		switch ids[i] {
		case t.thinkStart:
			return true
		case t.thinkEnd:
			return false
		}
	}
	return false
}

// openInText looks for the last marker in what the template wrote.
func (t *Template) openInText(segments []tokenizer.Segment) bool {
	for _, s := range slices.Backward(segments) {
		if !s.Special {
			continue
		}
		start, end := strings.LastIndex(s.Text, thinkStart), strings.LastIndex(s.Text, thinkEnd)
		if start >= 0 || end >= 0 {
			return start > end
		}
	}
	return false
}
