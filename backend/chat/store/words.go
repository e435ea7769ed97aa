package store

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// How text becomes words, in the index and in what is looked for: letters and digits make words; accents and case do not
// count; characters of scripts that are written without spaces are a word each, so that any part of a sentence is found.

// isolated are the scripts that are written without spaces.
var isolated = []*unicode.RangeTable{unicode.Han, unicode.Hiragana, unicode.Katakana, unicode.Thai, unicode.Lao, unicode.Khmer, unicode.Myanmar}

func isIsolated(r rune) bool { return r >= 0x0E00 && unicode.In(r, isolated...) }

// indexed returns text in the form in which SQLite's tokenizer finds the words that are meant.
func indexed(text string) string {
	if strings.IndexFunc(text, isIsolated) < 0 {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if isIsolated(r) {
			b.WriteByte(' ')
			b.WriteRune(r)
			b.WriteByte(' ')
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

const (
	maxQueryRunes = 300
	maxTerms      = 16
)

// term is what is looked for: the words of one stretch without spaces, which must follow each other.
type term struct {
	words  []string
	prefix bool // the last word may be the beginning of one
}

// terms cuts what a person typed. Nothing in it has a meaning beyond its letters and digits.
func terms(query string) []term {
	if runes := []rune(query); len(runes) > maxQueryRunes {
		query = string(runes[:maxQueryRunes])
	}
	var out []term
	for _, field := range strings.Fields(strings.ToValidUTF8(query, " ")) {
		words := strings.FieldsFunc(indexed(field), func(r rune) bool {
			return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !unicode.IsMark(r) && !unicode.IsNumber(r)
		})
		if len(words) > 0 && len(out) < maxTerms {
			out = append(out, term{words: words})
		}
	}
	// The last word may not have been typed to its end.
	if n := len(out); n > 0 {
		last := out[n-1].words[len(out[n-1].words)-1]
		r, _ := utf8.DecodeLastRuneInString(last)
		out[n-1].prefix = !isIsolated(r)
	}
	return out
}

// match writes terms as an FTS5 query: quoted words, all of which must occur.
func match(terms []term) string {
	var b strings.Builder
	for i, t := range terms {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(`"` + strings.Join(t.words, " ") + `"`)
		if t.prefix {
			b.WriteByte('*')
		}
	}
	return b.String()
}

// fold returns the letters of a rune without accents and case.
func fold(r rune) string {
	if r < utf8.RuneSelf {
		return string(unicode.ToLower(r))
	}
	var b strings.Builder
	for _, part := range norm.NFKD.String(string(r)) {
		if !unicode.IsMark(part) {
			b.WriteRune(unicode.ToLower(part))
		}
	}
	return b.String()
}

const (
	// MarkBegin and MarkEnd surround what was found in a snippet.
	MarkBegin = "\x02"
	MarkEnd   = "\x03"

	snippetBefore = 40 // runes shown before the first match
	snippetRunes  = 160
)

// snippet returns the surroundings of the first match in text as one line, with all matches in it marked.
func snippet(text string, terms []term) string {
	runes := []rune(text)
	folded := make([]string, 0, len(runes))
	for _, r := range runes {
		folded = append(folded, fold(r))
	}
	isWord := func(i int) bool {
		return i >= 0 && i < len(runes) && (unicode.IsLetter(runes[i]) || unicode.IsNumber(runes[i]) || unicode.IsMark(runes[i]))
	}
	var wanted []struct {
		word   string
		prefix bool
	}
	for _, t := range terms {
		for i := 0; i < len(t.words); i++ {
			var b strings.Builder
			for {
				isolatedWord := false
				for _, r := range t.words[i] {
					b.WriteString(fold(r))
					isolatedWord = isIsolated(r)
				}
				if !isolatedWord || i+1 == len(t.words) || !isIsolated([]rune(t.words[i+1])[0]) {
					break
				}
				i++ // characters that follow each other are looked for together
			}
			wanted = append(wanted, struct {
				word   string
				prefix bool
			}{b.String(), t.prefix && i == len(t.words)-1})
		}
	}
	// matchAt returns how many runes from i on are one of the words.
	matchAt := func(i int) int {
		if isWord(i-1) && !isIsolated(runes[i]) && !isIsolated(runes[i-1]) {
			return 0 // inside a word
		}
		for _, w := range wanted {
			rest, n := w.word, 0
			for rest != "" && i+n < len(runes) && strings.HasPrefix(rest, folded[i+n]) {
				rest = rest[len(folded[i+n]):]
				n++
			}
			if rest == "" && n > 0 && (w.prefix || !isWord(i+n) || isIsolated(runes[i+n]) || isIsolated(runes[i+n-1])) {
				return n
			}
		}
		return 0
	}
	first := -1
	for i := range runes {
		if matchAt(i) > 0 {
			first = i
			break
		}
	}
	from := max(0, first-snippetBefore)
	for i := from; i > 0 && i > from-15; i-- { // begin with a whole word
		if unicode.IsSpace(runes[i-1]) {
			from = i
			break
		}
	}
	to := min(len(runes), from+snippetRunes)
	var b strings.Builder
	if from > 0 {
		b.WriteString("…")
	}
	for i := from; i < to; {
		n := matchAt(i)
		if n == 0 {
			b.WriteRune(plain(runes[i]))
			i++
			continue
		}
		b.WriteString(MarkBegin)
		for _, r := range runes[i:min(i+n, len(runes))] {
			b.WriteRune(plain(r))
		}
		b.WriteString(MarkEnd)
		i += n
	}
	if to < len(runes) {
		b.WriteString("…")
	}
	return strings.Join(strings.FieldsFunc(b.String(), unicode.IsSpace), " ")
}

// plain keeps the marks' characters, and others that cannot be seen, out of snippets.
func plain(r rune) rune {
	if unicode.IsControl(r) {
		return ' '
	}
	return r
}
