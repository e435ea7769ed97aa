package tokenizer

import "unicode/utf8"

// replacement stands for bytes that no UTF-8 text can hold.
const replacement = "\uFFFD"

// nextRune looks at the first character of b. size is its length; valid is false when these bytes can start no character
// (size is then the longest stretch that one U+FFFD replaces, as the Unicode standard recommends and Rust, Python and the
// browsers do). size is 0 when b ends inside a character that could still become valid.
func nextRune(b []byte) (size int, valid bool) {
	if r, n := utf8.DecodeRune(b); r != utf8.RuneError || n > 1 {
		return n, true
	}
	// b starts with no whole character. Count the bytes that could still start one.
	low, high := byte(0x80), byte(0xBF) // bounds of the second byte, which are narrower after four of the first bytes
	length := 0
	switch c := b[0]; {
	case c >= 0xC2 && c <= 0xDF:
		length = 2
	case c >= 0xE0 && c <= 0xEF:
		length = 3
		if c == 0xE0 {
			low = 0xA0 // below: too long a form
		} else if c == 0xED {
			high = 0x9F // above: surrogates
		}
	case c >= 0xF0 && c <= 0xF4:
		length = 4
		if c == 0xF0 {
			low = 0x90 // below: too long a form
		} else if c == 0xF4 {
			high = 0x8F // above: beyond U+10FFFF
		}
	default:
		return 1, false
	}
	n := 1
	for n < length && n < len(b) {
		if b[n] < low || b[n] > high {
			return n, false
		}
		low, high = 0x80, 0xBF
		n++
	}
	return 0, false
}

// appendValid appends the characters of b to text, U+FFFD for what is none, and returns the bytes at the end of b that
// could still become a character.
func appendValid(text, b []byte) (extended, rest []byte) {
	for len(b) > 0 {
		size, valid := nextRune(b)
		if size == 0 {
			break
		}
		if valid {
			text = append(text, b[:size]...)
		} else {
			text = append(text, replacement...)
		}
		b = b[size:]
	}
	return text, b
}

// validText returns text with everything that is not UTF-8 replaced by U+FFFD.
func validText(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	valid, rest := appendValid(make([]byte, 0, len(text)+8), []byte(text))
	if len(rest) > 0 {
		valid = append(valid, replacement...)
	}
	return string(valid)
}

// Stream turns token ids into text as they are generated. It never shows half a character and never holds back a whole
// one: only bytes that can still become a character wait, three at most.
type Stream struct {
	tokenizer *Tokenizer
	pending   []byte
}

// NewStream begins a text. A Stream belongs to one goroutine.
func (t *Tokenizer) NewStream() *Stream { return &Stream{tokenizer: t} }

// Push takes the next token and returns the text it completes, which may be empty. An id outside the vocabulary has no text.
func (s *Stream) Push(id int32) string {
	if s.tokenizer.isAdded(id) {
		// An added token is whole text of its own: a character left open before it stays unfinished.
		return s.Flush() + s.tokenizer.text(id)
	}
	token := s.tokenizer.text(id)
	if len(s.pending) == 0 && utf8.ValidString(token) {
		return token
	}
	s.pending = append(s.pending, token...)
	text, rest := appendValid(make([]byte, 0, len(s.pending)), s.pending)
	s.pending = append(s.pending[:0], rest...)
	return string(text)
}

// Flush ends the text and returns U+FFFD if it ended inside a character.
func (s *Stream) Flush() string {
	if len(s.pending) == 0 {
		return ""
	}
	s.pending = s.pending[:0]
	return replacement
}

// Decode returns the text of ids, that of added tokens included.
func (t *Tokenizer) Decode(ids []int32) string {
	stream := t.NewStream()
	var text []byte
	for _, id := range ids {
		text = append(text, stream.Push(id)...)
	}
	return string(append(text, stream.Flush()...))
}
