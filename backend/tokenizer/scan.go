package tokenizer

import (
	"encoding/json"
	"fmt"
	"unicode/utf16"
	"unicode/utf8"
)

// scanner reads JSON front to back without building a tree. tokenizer.json is up to 28 MB of vocabulary and merges, which
// encoding/json reads in seconds and this in a tenth of one; the small rest of the file goes to encoding/json.
type scanner struct {
	data []byte
	at   int
	err  error  // the first fault; every method does nothing after it
	text []byte // holds the last string that had escapes
}

// maxDepth bounds the nesting of values that are skipped over.
const maxDepth = 64

func (s *scanner) fail(format string, args ...any) {
	if s.err == nil {
		s.err = fmt.Errorf("byte %d: %s", s.at, fmt.Sprintf(format, args...))
	}
}

// peek returns the next byte that is not white space, or 0 at the end or after a fault.
func (s *scanner) peek() byte {
	if s.err != nil {
		return 0
	}
	for s.at < len(s.data) {
		switch s.data[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return s.data[s.at]
		}
	}
	return 0
}

func (s *scanner) expect(c byte) {
	if s.peek() != c || s.at == len(s.data) {
		s.fail("expected %q", c)
		return
	}
	s.at++
}

// more is the loop condition over the elements of an array or object whose opening bracket has been read: it reads the
// comma before every element but the first, and the closing bracket.
func (s *scanner) more(first *bool, closing byte) bool {
	if s.peek() == closing {
		s.at++
		return false
	}
	if !*first {
		s.expect(',')
		if s.peek() == closing {
			s.fail("a comma before %q", closing)
		}
	}
	*first = false
	return s.err == nil
}

// object calls member for every key, with the value next to be read.
func (s *scanner) object(member func(key string)) {
	s.members(func(key []byte) {
		name := string(key)
		s.expect(':')
		if s.err == nil {
			member(name)
		}
	})
}

// members calls member for every key, with the colon next to be read. The key is valid until the next string is read.
func (s *scanner) members(member func(key []byte)) {
	s.expect('{')
	first := true
	for s.more(&first, '}') {
		if key := s.string(); s.err == nil {
			member(key)
		}
	}
}

// string reads a string. The result is valid until the next call.
func (s *scanner) string() []byte {
	s.expect('"')
	if s.err != nil {
		return nil
	}
	begin := s.at
	for s.at < len(s.data) {
		switch c := s.data[s.at]; {
		case c == '"':
			s.at++
			if !utf8.Valid(s.data[begin : s.at-1]) {
				s.fail("a string that is not UTF-8")
			}
			return s.data[begin : s.at-1]
		case c == '\\':
			return s.escapedString(begin)
		case c < ' ':
			s.fail("a control character in a string")
			return nil
		}
		s.at++
	}
	s.fail("a string without an end")
	return nil
}

// escapedString goes on with a string that began at begin, from its first backslash.
func (s *scanner) escapedString(begin int) []byte {
	s.text = append(s.text[:0], s.data[begin:s.at]...)
	for s.at < len(s.data) {
		c := s.data[s.at]
		s.at++
		switch {
		case c == '"':
			if !utf8.Valid(s.text) {
				s.fail("a string that is not UTF-8")
			}
			return s.text
		case c < ' ':
			s.fail("a control character in a string")
			return nil
		case c != '\\':
			s.text = append(s.text, c)
		default:
			if s.at == len(s.data) {
				s.fail("a string without an end")
				return nil
			}
			e := s.data[s.at]
			s.at++
			switch e {
			case '"', '\\', '/':
				s.text = append(s.text, e)
			case 'b':
				s.text = append(s.text, '\b')
			case 'f':
				s.text = append(s.text, '\f')
			case 'n':
				s.text = append(s.text, '\n')
			case 'r':
				s.text = append(s.text, '\r')
			case 't':
				s.text = append(s.text, '\t')
			case 'u':
				s.text = utf8.AppendRune(s.text, s.unicodeEscape())
			default:
				s.fail("an unknown escape \\%c in a string", e)
				return nil
			}
		}
	}
	s.fail("a string without an end")
	return nil
}

// unicodeEscape reads the four digits after \u, and a second escape where they are the first half of a surrogate pair.
// Half a pair alone reads as U+FFFD, as encoding/json has it.
func (s *scanner) unicodeEscape() rune {
	r, ok := hex4(s.data[s.at:])
	if !ok {
		s.fail("\\u without four hexadecimal digits")
		return utf8.RuneError
	}
	s.at += 4
	if !utf16.IsSurrogate(r) {
		return r
	}
	if rest := s.data[s.at:]; len(rest) >= 6 && rest[0] == '\\' && rest[1] == 'u' {
		if second, ok := hex4(rest[2:]); ok {
			if pair := utf16.DecodeRune(r, second); pair != utf8.RuneError {
				s.at += 6
				return pair
			}
		}
	}
	return utf8.RuneError
}

func hex4(b []byte) (rune, bool) {
	if len(b) < 4 {
		return 0, false
	}
	var r rune
	for _, c := range b[:4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// id reads a token id: a whole number from 0 to maxID.
func (s *scanner) id() int32 {
	s.peek()
	begin, value := s.at, 0
	for s.at < len(s.data) && s.data[s.at] >= '0' && s.data[s.at] <= '9' && value <= maxID {
		value = value*10 + int(s.data[s.at]-'0')
		s.at++
	}
	leadingZero := s.at-begin > 1 && s.data[begin] == '0'
	if s.at == begin || leadingZero || value > maxID {
		s.fail("expected a token id from 0 to %d", maxID)
		return 0
	}
	return int32(value)
}

// raw passes over one value of any kind and returns its bytes, balanced but otherwise unchecked: whoever wants what is in
// them gives them to encoding/json.
func (s *scanner) raw() []byte {
	s.peek()
	begin := s.at
	depth := 0
	for {
		switch c := s.peek(); c {
		case 0:
			s.fail("a value without an end")
			return nil
		case '{', '[':
			s.at++
			if depth++; depth > maxDepth {
				s.fail("more than %d values nested", maxDepth)
				return nil
			}
		case '}', ']':
			if depth--; depth < 0 {
				s.fail("expected a value")
				return nil
			}
			s.at++
		case '"':
			s.string()
		case ',', ':':
			if depth == 0 {
				s.fail("expected a value")
				return nil
			}
			s.at++
			continue
		default:
			word := s.at
			for s.at < len(s.data) && isWordByte(s.data[s.at]) {
				s.at++
			}
			if s.at == word {
				s.fail("unexpected %q", c)
				return nil
			}
		}
		if s.err != nil {
			return nil
		}
		if depth == 0 {
			return s.data[begin:s.at]
		}
	}
}

func isWordByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '+' || c == '.'
}

// decode reads the value of key into target by encoding/json.
func (s *scanner) decode(key string, target any) {
	value := s.raw()
	if s.err != nil {
		return
	}
	if err := json.Unmarshal(value, target); err != nil {
		s.fail("%s is malformed: %v", key, err)
	}
}
