// Package tokenizer turns text into token ids and back, by the byte-level BPE that a model's tokenizer.json describes.
//
// Encoding goes: cut out added tokens where they are allowed, normalise, split into words by patterns, map each word's
// bytes to ids, merge neighbours by rank. Decoding concatenates the bytes of the tokens; Stream does so while they arrive.
//
// Text that a person or a model wrote is plain: no character in it ever becomes a control token, whatever it spells. Only
// segments marked Special, which the chat template wrote, resolve added tokens. The package knows nothing of templates,
// models or files other than tokenizer.json.
package tokenizer

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// Tokenizer is read-only after loading and safe for use by any number of goroutines.
type Tokenizer struct {
	tokens   []string         // by id: the bytes a token stands for; "" where an id has none
	ids      map[string]int32 // the vocabulary by bytes; tokens that BPE cannot produce are only in added
	added    []addedToken
	addedIDs map[string]int32 // by content
	flags    []flags          // by id
	byteIDs  [256]int32       // the token of each single byte; −1 for bytes that UTF-8 never uses and the vocabulary lacks
	merges   mergeTable

	compose        bool // NFC
	steps          []step
	addPrefixSpace bool
	ignoreMerges   bool // a word that is a token as a whole is not merged step by step

	special, plain addedMatcher // which added tokens are looked for in special and in plain segments
}

type flags uint8

const (
	flagAdded   flags = 1 << iota
	flagControl       // never produced from plain text
)

// addedToken is a token that is found in the text as a whole before anything is split.
type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// control tells whether plain text may not produce the token. Some tokenizers declare markers such as <think> or
// <｜User｜> without "special", so the flag in the file cannot decide. What stays are runs of white space (OLMoE's
// vocabulary has its indentation there), which steer nothing.
func (a addedToken) control() bool {
	return a.Special || strings.TrimSpace(a.Content) != ""
}

// Segment is a stretch of text with one origin.
type Segment struct {
	Text    string
	Special bool // added tokens in it become their ids; only for text that comes from a template
}

// Encode returns the ids of plain text: none of them is special, whatever the text spells. The error is about
// a tokenizer.json whose own splitting pattern takes too long; the usual patterns cannot fail.
func (t *Tokenizer) Encode(text string) ([]int32, error) {
	return t.EncodeSegments([]Segment{{Text: text}})
}

// EncodeSegments returns the ids of the segments' texts, one after the other. Added tokens are found inside single special
// segments only; text between two of them is split and merged as a whole, across segments, because models were trained
// on prompts tokenised so.
func (t *Tokenizer) EncodeSegments(segments []Segment) ([]int32, error) {
	size := 0
	for _, s := range segments {
		size += len(s.Text)
	}
	e := encoder{t: t, ids: make([]int32, 0, size/3+8)}
	var run strings.Builder // text since the last added token that was found before normalising
	var marks []mark        // which parts of run may hold added tokens that are found after normalising
	flush := func() error {
		err := e.normalized(run.String(), marks)
		run.Reset()
		marks = marks[:0]
		return err
	}
	for _, s := range segments {
		text := validText(s.Text)
		matcher := &t.plain
		if s.Special {
			matcher = &t.special
		}
		for len(text) > 0 {
			before, token, after, found := matcher.next(text, false)
			marks = append(marks, mark{run.Len() + len(before), s.Special})
			run.WriteString(before)
			text = after
			if found {
				if err := flush(); err != nil {
					return nil, err
				}
				e.ids = append(e.ids, token)
			}
		}
	}
	if err := flush(); err != nil {
		return nil, err
	}
	return e.ids, nil
}

// mark says that text up to end, from where the mark before ended, is special or plain.
type mark struct {
	end     int
	special bool
}

// normalized encodes text in which added tokens that are declared "normalized" remain to be found.
func (e *encoder) normalized(text string, marks []mark) error {
	if !e.t.special.hasNormalized && !e.t.plain.hasNormalized {
		return e.words(e.t.normalize(text))
	}
	var run strings.Builder
	begin := 0
	for _, m := range marks {
		part := e.t.normalize(text[begin:m.end])
		begin = m.end
		matcher := &e.t.plain
		if m.special {
			matcher = &e.t.special
		}
		for len(part) > 0 {
			before, token, after, found := matcher.next(part, true)
			run.WriteString(before)
			part = after
			if found {
				if err := e.words(run.String()); err != nil {
					return err
				}
				run.Reset()
				e.ids = append(e.ids, token)
			}
		}
	}
	return e.words(run.String())
}

func (t *Tokenizer) normalize(text string) string {
	if t.compose {
		return norm.NFC.String(text)
	}
	return text
}

// addedMatcher finds added tokens of one set in text.
type addedMatcher struct {
	tokens        []addedToken
	byFirst       [256][]int32 // indices into tokens by first byte of content, longest content first
	hasNormalized bool
}

// next finds the leftmost, then longest, token of the set in text. Tokens that are matched after normalising and before
// are separate searches.
func (m *addedMatcher) next(text string, normalized bool) (before string, id int32, after string, found bool) {
	for at := 0; at < len(text); at++ {
		for _, index := range m.byFirst[text[at]] {
			token := &m.tokens[index]
			if token.Normalized != normalized || !strings.HasPrefix(text[at:], token.Content) {
				continue
			}
			begin, end := at, at+len(token.Content)
			if token.SingleWord && (endsInWord(text[:begin]) || startsWithWord(text[end:])) {
				continue
			}
			if token.LStrip {
				begin = len(strings.TrimRightFunc(text[:begin], unicode.IsSpace))
			}
			if token.RStrip {
				end = len(text) - len(strings.TrimLeftFunc(text[end:], unicode.IsSpace))
			}
			return text[:begin], token.ID, text[end:], true
		}
	}
	return text, 0, "", false
}

func isWordRune(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r) }

func endsInWord(s string) bool {
	r, _ := utf8.DecodeLastRuneInString(s)
	return isWordRune(r)
}

func startsWithWord(s string) bool {
	r, _ := utf8.DecodeRuneInString(s)
	return isWordRune(r)
}

// TokenID returns the id of the token that stands for exactly this text.
func (t *Tokenizer) TokenID(text string) (int32, bool) {
	if id, ok := t.addedIDs[text]; ok {
		return id, true
	}
	id, ok := t.ids[text]
	return id, ok
}

// IsSpecial tells whether id is a control token: one that plain text never becomes and that is not shown to people.
func (t *Tokenizer) IsSpecial(id int32) bool {
	return id >= 0 && int(id) < len(t.flags) && t.flags[id]&flagControl != 0
}

// Size is one more than the largest id.
func (t *Tokenizer) Size() int { return len(t.tokens) }

func (t *Tokenizer) isAdded(id int32) bool {
	return id >= 0 && int(id) < len(t.flags) && t.flags[id]&flagAdded != 0
}

func (t *Tokenizer) text(id int32) string {
	if id < 0 || int(id) >= len(t.tokens) {
		return ""
	}
	return t.tokens[id]
}
