package tokenizer

import (
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/dlclark/regexp2"
)

// span is a stretch of the text being encoded, in bytes.
type span struct{ begin, end int }

// step cuts pieces at the matches of one pattern: matches and what lies between them become pieces of their own.
type step struct {
	match    matcher         // the pattern written out in Go, or
	pattern  *regexp2.Regexp // as a regular expression
	dropGaps bool            // what lies between matches is left out
}

// matcher returns the length of the pattern's match at the very start of text, 0 if there is none. The known patterns look ahead
// only, so nothing before text matters.
type matcher func(text string) int

// patternTimeout ends a match that backtracks without end, in a tokenizer.json made to do so. The usual patterns take a
// microsecond a word and do not come here at all.
const patternTimeout = 2 * time.Second

func newStep(pattern string, dropGaps bool) (step, error) {
	if match, ok := knownPatterns[pattern]; ok {
		return step{match: match, dropGaps: dropGaps}, nil
	}
	if err := checkDialect(pattern); err != nil {
		return step{}, err
	}
	compiled, err := regexp2.Compile(pattern, regexp2.None)
	if err != nil {
		return step{}, err
	}
	compiled.MatchTimeout = patternTimeout
	return step{pattern: compiled, dropGaps: dropGaps}, nil
}

// checkDialect refuses what Oniguruma, for which these patterns are written, and regexp2 read differently: set operations
// and sets within sets, which .NET's dialect would take as plain characters.
func checkDialect(pattern string) error {
	inSet := false
	for i := 0; i < len(pattern); i++ {
		switch c := pattern[i]; {
		case c == '\\':
			i++
		case !inSet && c == '[':
			inSet = true
			if i+1 < len(pattern) && pattern[i+1] == '^' {
				i++
			}
			if i+1 < len(pattern) && pattern[i+1] == ']' {
				i++ // a bracket right after the opening one is a member
			}
		case inSet && c == ']':
			inSet = false
		case inSet && c == '[':
			return fmt.Errorf("a set within a set at byte %d", i)
		case inSet && c == '&' && i+1 < len(pattern) && pattern[i+1] == '&':
			return fmt.Errorf("an intersection of sets at byte %d", i)
		}
	}
	return nil
}

// split appends to out the pieces that the step makes of in.
func (s *step) split(text string, in, out []span) ([]span, error) {
	var err error
	for _, piece := range in {
		if s.match != nil {
			out = s.splitKnown(text, piece, out)
		} else if out, err = s.splitPattern(text, piece, out); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s *step) gap(begin, end int, out []span) []span {
	if begin == end || s.dropGaps {
		return out
	}
	return append(out, span{begin, end})
}

func (s *step) splitKnown(text string, piece span, out []span) []span {
	gap := piece.begin
	for at := piece.begin; at < piece.end; {
		length := s.match(text[at:piece.end])
		if length == 0 {
			_, size := utf8.DecodeRuneInString(text[at:])
			at += size
			continue
		}
		out = append(s.gap(gap, at, out), span{at, at + length})
		at += length
		gap = at
	}
	return s.gap(gap, piece.end, out)
}

func (s *step) splitPattern(text string, piece span, out []span) ([]span, error) {
	runes := []rune(text[piece.begin:piece.end])
	// regexp2 counts runes; at and atRune walk the text together.
	at, atRune, gap := piece.begin, 0, piece.begin
	advance := func(to int) {
		for ; atRune < to; atRune++ {
			at += utf8.RuneLen(runes[atRune])
		}
	}
	match, err := s.pattern.FindRunesMatch(runes)
	for ; match != nil && err == nil; match, err = s.pattern.FindNextMatch(match) {
		if match.Length == 0 {
			continue
		}
		advance(match.Index)
		begin := at
		advance(match.Index + match.Length)
		out = append(s.gap(gap, begin, out), span{begin, at})
		gap = at
	}
	if err != nil {
		return nil, fmt.Errorf("the splitting pattern %q of tokenizer.json: %w", s.pattern.String(), err)
	}
	return s.gap(gap, piece.end, out), nil
}
