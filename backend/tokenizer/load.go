package tokenizer

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
	"golang.org/x/text/unicode/norm"
)

const (
	// maxID bounds what a file can make us allocate by naming one large id. The largest vocabularies hold 262,144 tokens.
	maxID = 1<<20 - 1
	// maxFileBytes: the largest tokenizer.json in use is 28 MB.
	maxFileBytes = 128 << 20
)

// Load reads a tokenizer.json.
func Load(path string) (*Tokenizer, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, err
	}
	t, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be used: %w; replace it with the tokenizer.json of the model's publisher", path, err)
	}
	return t, nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %w", err)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("reading the tokenizer: %s is not a file", path)
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("reading the tokenizer: %s has %d bytes, more than the %d that any tokenizer needs", path, info.Size(), maxFileBytes)
	}
	data := make([]byte, info.Size())
	if _, err := io.ReadFull(file, data); err != nil {
		return nil, fmt.Errorf("reading the tokenizer: %s: %w", path, err)
	}
	return data, nil
}

// Parse reads the contents of a tokenizer.json.
func Parse(data []byte) (*Tokenizer, error) {
	t := &Tokenizer{}
	p := parser{scanner: scanner{data: data}, t: t}
	p.object(func(key string) {
		switch key {
		case "added_tokens":
			p.decode(key, &t.added)
		case "normalizer":
			p.normalizer()
		case "pre_tokenizer":
			p.preTokenizer()
		case "model":
			p.model()
		case "decoder":
			p.decoder()
		default: // version, truncation, padding and post_processor say nothing about how text is encoded
			p.raw()
		}
	})
	if p.peek() != 0 || p.at < len(data) {
		p.fail("something follows the end")
	}
	if p.err != nil {
		return nil, p.err
	}
	if err := p.finish(); err != nil {
		return nil, err
	}
	return t, nil
}

// parser fills a Tokenizer.
type parser struct {
	scanner
	t            *Tokenizer
	hasModel     bool
	hasByteLevel bool
	merges       []byte // the merges, where they came before the vocabulary
}

// description is what the file's normalizers, pre-tokenizers and decoders look like.
type description struct {
	Type           string
	Normalizers    []json.RawMessage
	PreTokenizers  []json.RawMessage `json:"pretokenizers"`
	Pattern        struct{ Regex, String *string }
	Behavior       string
	Invert         bool
	AddPrefixSpace bool  `json:"add_prefix_space"`
	UseRegex       *bool `json:"use_regex"`
}

// describe reads one description; ok is false for null and after a fault.
func (p *parser) describe(what string, value []byte) (d description, ok bool) {
	if p.err != nil || string(value) == "null" {
		return d, false
	}
	if err := json.Unmarshal(value, &d); err != nil {
		p.fail("its %s is malformed: %v", what, err)
		return d, false
	}
	return d, true
}

func (p *parser) normalizer() {
	var apply func(value []byte)
	apply = func(value []byte) {
		d, ok := p.describe("normalizer", value)
		if !ok {
			return
		}
		switch d.Type {
		case "NFC":
			p.t.compose = true
		case "Sequence":
			for _, n := range d.Normalizers {
				apply(n)
			}
		default:
			p.fail("its normalizer is a %q, and only NFC is known", d.Type)
		}
	}
	apply(p.raw())
}

func (p *parser) preTokenizer() {
	var apply func(value []byte)
	apply = func(value []byte) {
		d, ok := p.describe("pre_tokenizer", value)
		if !ok {
			return
		}
		if p.hasByteLevel {
			p.fail("a pre-tokenizer follows the ByteLevel one, which turns text into bytes and so must be the last")
			return
		}
		switch d.Type {
		case "Sequence":
			for _, s := range d.PreTokenizers {
				apply(s)
			}
		case "Split":
			p.split(d)
		case "ByteLevel":
			p.hasByteLevel = true
			p.t.addPrefixSpace = d.AddPrefixSpace
			if d.UseRegex == nil || *d.UseRegex {
				p.addStep(patternGPT2, false)
			}
		default:
			p.fail("its pre-tokenizer is a %q, and only Split, ByteLevel and Sequence are known", d.Type)
		}
	}
	apply(p.raw())
}

func (p *parser) split(d description) {
	var pattern string
	switch {
	case d.Pattern.Regex != nil:
		pattern = *d.Pattern.Regex
	case d.Pattern.String != nil:
		pattern = regexp2.Escape(*d.Pattern.String)
	}
	if pattern == "" {
		p.fail("a Split pre-tokenizer has no pattern")
		return
	}
	switch {
	case d.Behavior == "Isolated": // with invert, too: matches and gaps are pieces either way
		p.addStep(pattern, false)
	case d.Behavior == "Removed" && d.Invert:
		p.addStep(pattern, true)
	default:
		p.fail("a Split pre-tokenizer has behavior %q with invert %t, and only Isolated, and Removed with invert, are known", d.Behavior, d.Invert)
	}
}

func (p *parser) addStep(pattern string, dropGaps bool) {
	s, err := newStep(pattern, dropGaps)
	if err != nil {
		p.fail("the splitting pattern %q cannot be used: %v", pattern, err)
		return
	}
	p.t.steps = append(p.t.steps, s)
}

func (p *parser) decoder() {
	if d, ok := p.describe("decoder", p.raw()); ok && d.Type != "ByteLevel" {
		p.fail("its decoder is a %q, and only ByteLevel is known", d.Type)
	}
}

func (p *parser) model() {
	if p.hasModel {
		p.fail("it has two models")
		return
	}
	p.hasModel = true
	p.object(func(key string) {
		switch key {
		case "type":
			if kind := string(p.string()); kind != "BPE" && p.err == nil {
				p.fail("its model is a %q, and only BPE is known", kind)
			}
		case "vocab":
			p.vocabulary()
		case "merges":
			if p.t.ids == nil {
				p.merges = p.raw()
			} else {
				p.readMerges(&p.scanner)
			}
		case "ignore_merges":
			p.decode(key, &p.t.ignoreMerges)
		case "byte_fallback":
			var fallback bool
			if p.decode(key, &fallback); fallback {
				p.fail("its model uses byte_fallback, which byte-level BPE has no need of")
			}
		case "dropout":
			var dropout float64
			if p.decode(key, &dropout); dropout != 0 {
				p.fail("its model has a dropout of %g, which would make encoding random", dropout)
			}
		case "continuing_subword_prefix", "end_of_word_suffix":
			var affix string
			if p.decode(key, &affix); affix != "" {
				p.fail("its model has the %s %q, which byte-level BPE has no need of", key, affix)
			}
		default: // unk_token and fuse_unk matter only where a byte has no token, which finish refuses
			p.raw()
		}
	})
	if p.merges != nil && p.err == nil && p.t.ids != nil {
		late := scanner{data: p.merges}
		if p.readMerges(&late); late.err != nil {
			p.fail("in merges, %v", late.err)
		}
	}
}

// vocabulary reads {"token": id, …} into tokens and ids. Tokens are stored as the bytes they stand for, all in one string.
func (p *parser) vocabulary() {
	if p.t.ids != nil {
		p.fail("its model has two vocabularies")
		return
	}
	type entry struct {
		id         int32
		begin, end int
		byteLevel  bool
	}
	entries := make([]entry, 0, 1<<13)
	var all []byte
	largest := int32(-1)
	p.members(func(key []byte) {
		begin := len(all)
		var ok bool
		all, ok = appendBytes(all, key)
		if !ok {
			all = append(all[:begin], key...)
		}
		p.expect(':')
		id := p.id()
		largest = max(largest, id)
		entries = append(entries, entry{id, begin, len(all), ok})
	})
	if p.err != nil {
		return
	}
	text := string(all)
	p.t.tokens = make([]string, largest+1)
	p.t.ids = make(map[string]int32, len(entries))
	p.t.merges.resize(len(entries) * 3 / 2) // there are mostly as many merges as tokens
	for _, e := range entries {
		token := text[e.begin:e.end]
		if token == "" {
			p.fail("its vocabulary has an empty token, id %d", e.id)
			return
		}
		if p.t.tokens[e.id] != "" {
			p.fail("its vocabulary gives id %d to both %q and %q", e.id, p.t.tokens[e.id], token)
			return
		}
		p.t.tokens[e.id] = token
		if e.byteLevel {
			p.t.ids[token] = e.id
		}
	}
}

// readMerges reads ["left right", …] or [["left","right"], …].
func (p *parser) readMerges(s *scanner) {
	t := p.t
	var both []byte
	rank, id := int32(0), int32(-1)
	s.expect('[')
	first := true
	for s.more(&first, ']') {
		both = both[:0]
		middle := 0
		ok := true
		if s.peek() == '[' {
			s.at++
			var leftOK, rightOK bool
			both, leftOK = appendBytes(both, s.string())
			middle = len(both)
			s.expect(',')
			both, rightOK = appendBytes(both, s.string())
			s.expect(']')
			ok = leftOK && rightOK
		} else {
			text := s.string()
			space := 0
			for space < len(text) && text[space] != ' ' {
				space++
			}
			var leftOK, rightOK bool
			both, leftOK = appendBytes(both, text[:space])
			middle = len(both)
			if space < len(text) {
				both, rightOK = appendBytes(both, text[space+1:])
			}
			ok = leftOK && rightOK
		}
		if s.err != nil {
			return
		}
		left, hasLeft := t.ids[string(both[:middle])]
		right, hasRight := t.ids[string(both[middle:])]
		// Tokens are mostly numbered in the order of their merges, which saves the third search.
		hasBoth := true
		if next := id + 1; int(next) < len(t.tokens) && t.tokens[next] == string(both) {
			id = next
		} else if id < 0 || t.tokens[id] != string(both) {
			id, hasBoth = t.ids[string(both)]
		}
		if !ok || !hasLeft || !hasRight || !hasBoth {
			s.fail("merge %d joins %q and %q, of which not all are in the vocabulary", rank, both[:middle], both[middle:])
			return
		}
		t.merges.set(pairKey(left, right), rank, id)
		rank++
	}
}

// finish checks what can be checked only when everything was read, and builds the indices.
func (p *parser) finish() error {
	t := p.t
	switch {
	case !p.hasModel:
		return fmt.Errorf("it has no model")
	case len(t.ids) == 0:
		return fmt.Errorf("its model has no vocabulary")
	case !p.hasByteLevel:
		return fmt.Errorf("it has no ByteLevel pre-tokenizer, and only byte-level BPE is known")
	}
	if err := p.finishAdded(); err != nil {
		return err
	}
	for b := range t.byteIDs {
		id, ok := t.ids[string([]byte{byte(b)})]
		// C0, C1 and F5 to FF are in no UTF-8 text, and some vocabularies have no token for them.
		if neverInUTF8 := b == 0xC0 || b == 0xC1 || b >= 0xF5; !ok && !neverInUTF8 {
			return fmt.Errorf("its vocabulary has no token for the byte 0x%02X", b)
		}
		if !ok {
			id = -1
		} else if t.IsSpecial(id) {
			return fmt.Errorf("the token of the byte 0x%02X is also the added token %q", b, t.tokens[id])
		}
		t.byteIDs[b] = id
	}
	for _, m := range t.merges.slots {
		if m.key != 0 && t.IsSpecial(m.id) {
			return fmt.Errorf("a merge makes the added token %q, so that plain text could become it", t.tokens[m.id])
		}
	}
	// A word that is looked up as a whole must not become a control token either.
	for _, a := range t.added {
		if a.control() {
			delete(t.ids, a.Content)
		}
	}
	return nil
}

func (p *parser) finishAdded() error {
	t := p.t
	for i := range t.added {
		a := &t.added[i]
		if a.Content == "" {
			return fmt.Errorf("the added token with id %d has no text", a.ID)
		}
		if a.ID < 0 || a.ID > maxID {
			return fmt.Errorf("the added token %q has the id %d, outside 0 to %d", a.Content, a.ID, maxID)
		}
		if grow := int(a.ID) + 1 - len(t.tokens); grow > 0 {
			t.tokens = append(t.tokens, make([]string, grow)...)
		}
		if a.Normalized && t.compose {
			a.Content = norm.NFC.String(a.Content)
		}
	}
	t.flags = make([]flags, len(t.tokens))
	t.addedIDs = make(map[string]int32, len(t.added))
	var plain []addedToken
	for _, a := range t.added {
		if id, ok := t.addedIDs[a.Content]; ok && id != a.ID {
			return fmt.Errorf("the added token %q has two ids, %d and %d", a.Content, id, a.ID)
		}
		if id, ok := t.ids[a.Content]; ok && id != a.ID {
			return fmt.Errorf("the added token %q has the id %d, but the vocabulary gives it %d", a.Content, a.ID, id)
		}
		if other := t.tokens[a.ID]; other != "" && other != a.Content {
			return fmt.Errorf("the added token %q has the id %d of the token %q", a.Content, a.ID, other)
		}
		t.addedIDs[a.Content] = a.ID
		t.tokens[a.ID] = a.Content
		t.flags[a.ID] |= flagAdded
		if a.control() {
			t.flags[a.ID] |= flagControl
		} else {
			plain = append(plain, a)
		}
	}
	t.special = newAddedMatcher(t.added)
	t.plain = newAddedMatcher(plain)
	return nil
}

func newAddedMatcher(tokens []addedToken) addedMatcher {
	m := addedMatcher{tokens: tokens}
	for i, a := range tokens {
		m.byFirst[a.Content[0]] = append(m.byFirst[a.Content[0]], int32(i))
		m.hasNormalized = m.hasNormalized || a.Normalized
	}
	for _, list := range m.byFirst {
		sort.SliceStable(list, func(i, j int) bool { return len(tokens[list[i]].Content) > len(tokens[list[j]].Content) })
	}
	return m
}

// byteOf maps the characters that stand for bytes in vocabulary files to these bytes. Printable Latin-1 characters stand
// for themselves; the other 68 bytes are U+0100 and up, in order.
var byteOf = func() (table [0x144]int16) {
	for i := range table {
		table[i] = -1
	}
	next := 0x100
	for b := range 256 {
		if b >= '!' && b <= '~' || b >= 0xA1 && b <= 0xAC || b >= 0xAE {
			table[b] = int16(b)
		} else {
			table[next] = int16(b)
			next++
		}
	}
	return table
}()

// appendBytes appends the bytes that a vocabulary entry stands for. ok is false if it is not written in these characters.
func appendBytes(dst, token []byte) (extended []byte, ok bool) {
	for i := 0; i < len(token); {
		if c := token[i]; c < utf8.RuneSelf {
			if byteOf[c] < 0 {
				return dst, false
			}
			dst = append(dst, c)
			i++
			continue
		}
		r, size := utf8.DecodeRune(token[i:])
		if int(r) >= len(byteOf) || byteOf[r] < 0 {
			return dst, false
		}
		dst = append(dst, byte(byteOf[r]))
		i += size
	}
	return dst, true
}
