package container

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"unicode/utf8"
)

// maxHeaderBytes is the limit of the reference implementation of safetensors.
const maxHeaderBytes = 100_000_000

// dtypeBits are the tensor types a header may name, with the bits of one element.
var dtypeBits = map[string]uint64{
	"BOOL": 8, "U8": 8, "I8": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6,
	"F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8,
	"I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
	"I64": 64, "U64": 64, "F64": 64, "C64": 64,
}

// headerWords are the strings that a header repeats for each of up to 120,000 tensors.
var headerWords = func() map[string]string {
	words := map[string]string{"dtype": "dtype", "shape": "shape", "data_offsets": "data_offsets"}
	for name := range dtypeBits {
		words[name] = name
	}
	return words
}()

// header is what a safetensors file says of itself. Tensors are in file order and cover the data without holes.
type header struct {
	metadata map[string]string
	tensors  []tensorEntry
}

// tensorEntry is one tensor of a file; begin and end count from the start of the data.
type tensorEntry struct {
	name       string
	dtype      string
	shape      []int64
	begin, end int64
}

// parseHeader reads the JSON part of a safetensors file whose data is dataBytes long. It follows the format's text where the
// reference implementation is laxer: the first byte must be "{" (no leading space), and a key that occurs twice is
// refused, because two readers would see two different models.
func parseHeader(text []byte, dataBytes int64) (*header, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("its header is not UTF-8 text")
	}
	if len(text) == 0 || text[0] != '{' {
		return nil, errors.New(`its header does not begin with "{"`)
	}
	s := &scanner{text: text}
	h := &header{}
	seen := map[string]bool{}
	err := s.object(func(key string) error {
		if seen[key] {
			return fmt.Errorf("its header names %q twice", key)
		}
		seen[key] = true
		if key == "__metadata__" {
			var err error
			h.metadata, err = s.stringMap()
			return err
		}
		t, err := s.tensor(key)
		if err != nil {
			return fmt.Errorf("tensor %q: %w", key, err)
		}
		h.tensors = append(h.tensors, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if s.space(); s.at < len(s.text) {
		return nil, fmt.Errorf("its header has text after the closing brace, at byte %d", s.at)
	}
	return h, h.checkOffsets(dataBytes)
}

// checkOffsets orders the tensors by place and refuses holes, overlaps and data that no tensor owns.
func (h *header) checkOffsets(dataBytes int64) error {
	slices.SortFunc(h.tensors, func(a, b tensorEntry) int {
		if a.begin != b.begin {
			return compare(a.begin, b.begin)
		}
		return compare(a.end, b.end)
	})
	var at int64
	for _, t := range h.tensors {
		switch {
		case t.begin < at:
			return fmt.Errorf("tensor %q overlaps the one before it (it begins at %d, the other ends at %d)", t.name, t.begin, at)
		case t.begin > at:
			return fmt.Errorf("%d bytes before tensor %q belong to no tensor", t.begin-at, t.name)
		case t.end > dataBytes:
			return fmt.Errorf("tensor %q ends at byte %d of the data, but the file holds %d", t.name, t.end, dataBytes)
		}
		at = t.end
	}
	if at != dataBytes {
		return fmt.Errorf("%d bytes at the end belong to no tensor", dataBytes-at)
	}
	return nil
}

func compare(a, b int64) int {
	if a < b {
		return -1
	}
	if a > b {
		return 1
	}
	return 0
}

// tensor reads {"dtype": …, "shape": […], "data_offsets": [a, b]} and checks that the three agree.
func (s *scanner) tensor(name string) (tensorEntry, error) {
	t := tensorEntry{name: name}
	var offsets []int64
	var hasType, hasShape, hasOffsets bool
	once := func(seen *bool, key string) error {
		if *seen {
			return fmt.Errorf("%q is given twice", key)
		}
		*seen = true
		return nil
	}
	err := s.object(func(key string) (err error) {
		switch key {
		case "dtype":
			if err = once(&hasType, key); err == nil {
				t.dtype, err = s.string()
			}
		case "shape":
			if err = once(&hasShape, key); err == nil {
				t.shape, err = s.integers()
			}
		case "data_offsets":
			if err = once(&hasOffsets, key); err == nil {
				offsets, err = s.integers()
			}
		default:
			err = fmt.Errorf("unknown field %q", key)
		}
		return err
	})
	if err != nil {
		return t, err
	}
	width, known := dtypeBits[t.dtype]
	switch {
	case !hasShape:
		return t, errors.New("it has no shape")
	case len(offsets) != 2:
		return t, fmt.Errorf("data_offsets has %d numbers instead of 2", len(offsets))
	case !known:
		return t, fmt.Errorf("its type %q is unknown", t.dtype)
	}
	t.begin, t.end = offsets[0], offsets[1]
	if t.end < t.begin {
		return t, fmt.Errorf("it ends (%d) before it begins (%d)", t.end, t.begin)
	}
	size := width
	for _, n := range t.shape {
		hi, lo := bits.Mul64(size, uint64(n))
		if hi != 0 || lo > math.MaxInt64 {
			return t, fmt.Errorf("its shape %v is larger than any file", t.shape)
		}
		size = lo
	}
	if size%8 != 0 || int64(size/8) != t.end-t.begin {
		return t, fmt.Errorf("%s of shape %v needs %d bytes, its offsets span %d", t.dtype, t.shape, (size+7)/8, t.end-t.begin)
	}
	return t, nil
}

// scanner reads the little JSON that headers and stamps consist of: objects, strings and non-negative integers, nothing
// nested deeper than the format's own three levels, so hostile nesting ends at the first unexpected byte.
type scanner struct {
	text []byte
	at   int
}

func (s *scanner) space() {
	for s.at < len(s.text) {
		switch s.text[s.at] {
		case ' ', '\t', '\n', '\r':
			s.at++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there, 0 at the end.
func (s *scanner) next() byte {
	s.space()
	if s.at == len(s.text) {
		return 0
	}
	return s.text[s.at]
}

func (s *scanner) expect(c byte) error {
	if got := s.next(); got != c {
		if s.at == len(s.text) {
			return fmt.Errorf("the JSON ends where %q should stand", c)
		}
		return fmt.Errorf("byte %d of the JSON is %q instead of %q", s.at, got, c)
	}
	s.at++
	return nil
}

// object reads an object and calls member with each key, the value to be read by it.
func (s *scanner) object(member func(key string) error) error {
	if err := s.expect('{'); err != nil {
		return err
	}
	if s.next() == '}' {
		s.at++
		return nil
	}
	for {
		key, err := s.string()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		if err := member(key); err != nil {
			return err
		}
		if s.next() != ',' {
			return s.expect('}')
		}
		s.at++
	}
}

func (s *scanner) stringMap() (map[string]string, error) {
	m := map[string]string{}
	err := s.object(func(key string) error {
		if _, twice := m[key]; twice {
			return fmt.Errorf("%q is given twice", key)
		}
		value, err := s.string()
		m[key] = value
		return err
	})
	return m, err
}

func (s *scanner) string() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start, escaped := s.at, false
	for ; s.at < len(s.text); s.at++ {
		switch c := s.text[s.at]; {
		case c == '\\':
			escaped = true
			s.at++
		case c < 0x20:
			return "", fmt.Errorf("byte %d of the JSON is a control character inside a string", s.at)
		case c == '"':
			raw := s.text[start:s.at]
			s.at++
			if word, ok := headerWords[string(raw)]; ok { // does not allocate
				return word, nil
			}
			if !escaped {
				return string(raw), nil
			}
			return unescape(raw)
		}
	}
	return "", errors.New("a string of the JSON has no end")
}

// unescape resolves a JSON string's backslashes.
func unescape(raw []byte) (string, error) {
	out := make([]byte, 0, len(raw))
	var surrogate rune
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			out = append(out, raw[i])
			continue
		}
		i++
		if i == len(raw) {
			return "", errors.New("a string of the JSON ends in a backslash")
		}
		switch c := raw[i]; c {
		case '"', '\\', '/':
			out = append(out, c)
		case 'b':
			out = append(out, '\b')
		case 'f':
			out = append(out, '\f')
		case 'n':
			out = append(out, '\n')
		case 'r':
			out = append(out, '\r')
		case 't':
			out = append(out, '\t')
		case 'u':
			if i+5 > len(raw) {
				return "", errors.New(`a \u escape of the JSON is cut short`)
			}
			n, err := strconv.ParseUint(string(raw[i+1:i+5]), 16, 32)
			if err != nil {
				return "", errors.New(`a \u escape of the JSON is not four hexadecimal digits`)
			}
			i += 4
			r := rune(n)
			switch {
			case surrogate != 0:
				if r < 0xDC00 || r > 0xDFFF {
					return "", errors.New(`a \u escape of the JSON is half a character`)
				}
				r = 0x10000 + (surrogate-0xD800)<<10 + (r - 0xDC00)
				surrogate = 0
			case r >= 0xD800 && r <= 0xDBFF && i+2 < len(raw) && raw[i+1] == '\\' && raw[i+2] == 'u':
				surrogate = r
				continue
			case r >= 0xD800 && r <= 0xDFFF:
				return "", errors.New(`a \u escape of the JSON is half a character`)
			}
			out = utf8.AppendRune(out, r)
		default:
			return "", fmt.Errorf(`the JSON has an unknown escape \%c`, c)
		}
	}
	return string(out), nil
}

// integers reads an array of non-negative whole numbers that fit in an int64.
func (s *scanner) integers() ([]int64, error) {
	if err := s.expect('['); err != nil {
		return nil, err
	}
	numbers := []int64{}
	if s.next() == ']' {
		s.at++
		return numbers, nil
	}
	for {
		s.space()
		start := s.at
		for s.at < len(s.text) && s.text[s.at] >= '0' && s.text[s.at] <= '9' {
			s.at++
		}
		digits := string(s.text[start:s.at])
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || (len(digits) > 1 && digits[0] == '0') {
			return nil, fmt.Errorf("byte %d of the JSON is not a whole number between 0 and 2^63-1", start)
		}
		numbers = append(numbers, n)
		if s.next() != ',' {
			return numbers, s.expect(']')
		}
		s.at++
	}
}

// parseStamps reads the value of __metadata__["colibri.fmt"]: a JSON object, tensor name to format name. Names of formats
// are ours (see Encoding.String) and the published ones; "int4-grouped" leaves the group open (Group 0).
func parseStamps(text string) (map[string]Encoding, error) {
	stamps, err := readStamps(text)
	if err != nil {
		return nil, fmt.Errorf("its colibri.fmt stamp is wrong: %w", err)
	}
	return stamps, nil
}

func readStamps(text string) (map[string]Encoding, error) {
	if !utf8.ValidString(text) {
		return nil, errors.New("it is not UTF-8 text")
	}
	s := &scanner{text: []byte(text)}
	stamps := map[string]Encoding{}
	err := s.object(func(name string) error {
		if _, twice := stamps[name]; twice {
			return fmt.Errorf("%q is named twice", name)
		}
		format, err := s.string()
		if err != nil {
			return err
		}
		encoding, err := parseStamp(format)
		stamps[name] = encoding
		if err != nil {
			return fmt.Errorf("tensor %q: %w", name, err)
		}
		return nil
	})
	if s.space(); err == nil && s.at < len(s.text) {
		err = errors.New("there is text after the closing brace")
	}
	return stamps, err
}

func parseStamp(name string) (Encoding, error) {
	switch name {
	case Int4Group.String():
		return Encoding{Format: Int4Group}, nil
	case "e8-iq3-lattice", "mxfp4", "int4-rans256-g0":
		return Encoding{}, fmt.Errorf("format %s is not supported; use a container with int4-g64 or int8 weights", name)
	}
	e, err := ParseEncoding(name)
	if err != nil {
		return Encoding{}, fmt.Errorf("%q is not a known format name", name)
	}
	return e, nil
}
