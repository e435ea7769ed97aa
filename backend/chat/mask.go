package chat

import (
	"errors"
	"strings"
	"unicode"

	"colibri/backend/tokenizer"
)

// mask carries the origin of text through a template. Every character of a message except white space is replaced, for the
// rendering, by a private-use character that stands for it; what comes out of the template as such a character was in a
// message, everything else was in the template. Templates can strip, split, slice and join messages as they like (white space,
// lengths and positions are unchanged), but a message that spells a marker that the template looks for, such as </think>, is
// not mistaken for one, and no marker can be put together from pieces of messages.
type mask struct {
	stands map[rune]rune // by character of a message
	means  map[rune]rune // the other way
	taken  map[rune]bool // private-use characters that the template itself contains
	next   rune
}

// The private-use planes; together they have room for 131,068 different characters.
const (
	firstPrivate = 0xF0000
	lastPrivate  = 0x10FFFD
)

var errTooManyCharacters = errors.New("the conversation has more different characters than a prompt can hold")

// newMask returns a mask for a template made of these texts.
func newMask(templateTexts ...string) *mask {
	m := &mask{stands: map[rune]rune{}, means: map[rune]rune{}, taken: map[rune]bool{}, next: firstPrivate}
	for _, text := range templateTexts {
		for _, r := range text {
			if r >= firstPrivate {
				m.taken[r] = true
			}
		}
	}
	return m
}

// isSpace covers what templates strip and split at; these characters keep their place and their meaning.
func isSpace(r rune) bool { return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F }

// hide replaces the characters of a message. What is not UTF-8 in it comes back as U+FFFD.
func (m *mask) hide(text string) (string, error) {
	var b strings.Builder
	b.Grow(4 * len(text))
	for _, r := range text {
		if isSpace(r) {
			b.WriteRune(r)
			continue
		}
		stand, ok := m.stands[r]
		if !ok {
			for m.taken[m.next] || m.next&0xFFFE == 0xFFFE { // the last two of a plane are no characters
				m.next++
			}
			if stand = m.next; stand > lastPrivate {
				return "", errTooManyCharacters
			}
			m.next++
			m.stands[r], m.means[stand] = stand, r
		}
		b.WriteRune(stand)
	}
	return b.String(), nil
}

// reveal restores the messages in rendered text and tells them from the template's. White space goes with the template,
// except between two characters of messages.
func (m *mask) reveal(rendered string) []tokenizer.Segment {
	var segments []tokenizer.Segment
	var current, space strings.Builder // space: white space after a character of a message
	plain := false
	flush := func() {
		if current.Len() > 0 {
			segments = append(segments, tokenizer.Segment{Text: current.String(), Special: !plain})
			current.Reset()
		}
	}
	for _, r := range rendered {
		original, fromMessage := m.means[r]
		switch {
		case fromMessage:
			if !plain {
				flush()
				plain = true
			}
			current.WriteString(space.String())
			space.Reset()
			current.WriteRune(original)
		case plain && isSpace(r):
			space.WriteRune(r)
		default:
			if plain {
				flush()
				plain = false
			}
			current.WriteString(space.String())
			space.Reset()
			current.WriteRune(r)
		}
	}
	flush()
	if space.Len() > 0 {
		segments = append(segments, tokenizer.Segment{Text: space.String(), Special: true})
	}
	return segments
}
