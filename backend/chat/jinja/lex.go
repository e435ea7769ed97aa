package jinja

import (
	"fmt"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

type tokenKind uint8

const (
	tokEnd tokenKind = iota
	tokText
	tokOutputBegin // {{
	tokOutputEnd
	tokBlockBegin // {%
	tokBlockEnd
	tokName
	tokString
	tokInteger
	tokFloat
	tokOperator
)

type token struct {
	kind tokenKind
	text string // of strings: their value
	line int
}

// lexer cuts a template into tokens, with white space trimmed as Hugging Face's settings say: trim_blocks, lstrip_blocks.
type lexer struct {
	source string
	at     int
	line   int
	tokens []token
}

func (l *lexer) errorf(format string, args ...any) error {
	return fmt.Errorf("line %d: %s", l.line, fmt.Sprintf(format, args...))
}

func (l *lexer) add(kind tokenKind, text string) {
	l.tokens = append(l.tokens, token{kind, text, l.line})
}

// advance moves on by n bytes and counts their lines.
func (l *lexer) advance(n int) {
	l.line += strings.Count(l.source[l.at:l.at+n], "\n")
	l.at += n
}

func lex(source string) ([]token, error) {
	source = strings.ReplaceAll(strings.ReplaceAll(source, "\r\n", "\n"), "\r", "\n")
	source = strings.TrimSuffix(source, "\n")
	l := &lexer{source: source, line: 1}
	trimLeft, trimNewline := false, false // what the tag before says of the text after it
	for l.at < len(l.source) {
		rest := l.source[l.at:]
		begin := nextTag(rest)
		text := rest[:begin]
		tag := ""
		if begin < len(rest) {
			tag = rest[begin : begin+2]
		}
		sign := byte(0)
		if tag != "" && begin+2 < len(rest) && (rest[begin+2] == '-' || rest[begin+2] == '+') {
			sign = rest[begin+2]
		}
		shown := text
		if trimLeft {
			shown = strings.TrimLeftFunc(shown, unicode.IsSpace)
		} else if trimNewline {
			shown = strings.TrimPrefix(shown, "\n")
		}
		switch {
		case sign == '-':
			shown = strings.TrimRightFunc(shown, unicode.IsSpace)
		case sign != '+' && (tag == "{%" || tag == "{#"):
			shown = stripIndent(shown, l.at == 0 || trimNewline && strings.HasPrefix(text, "\n") || !trimLeft && l.source[l.at-1] == '\n')
		}
		if shown != "" {
			l.add(tokText, shown)
		}
		l.advance(begin)
		trimLeft, trimNewline = false, false
		if tag == "" {
			break
		}
		l.advance(2)
		if sign != 0 {
			l.advance(1)
		}
		var end byte
		var err error
		switch tag {
		case "{#":
			end, err = l.comment()
			trimNewline = end != '+'
		case "{{":
			l.add(tokOutputBegin, "")
			end, err = l.expression("}}", tokOutputEnd)
		case "{%":
			var raw bool
			if raw, end, err = l.rawBlock(); !raw && err == nil {
				l.add(tokBlockBegin, "")
				end, err = l.expression("%}", tokBlockEnd)
			}
			trimNewline = end != '+'
		}
		if err != nil {
			return nil, err
		}
		trimLeft = end == '-'
	}
	l.add(tokEnd, "")
	return l.tokens, nil
}

// nextTag returns where the next {{, {% or {# begins.
func nextTag(s string) int {
	for at := 0; ; {
		i := strings.IndexByte(s[at:], '{')
		if i < 0 || at+i+1 >= len(s) {
			return len(s)
		}
		at += i
		if c := s[at+1]; c == '{' || c == '%' || c == '#' {
			return at
		}
		at++
	}
}

// stripIndent removes the blanks between the start of the line and a block tag. startsLine says that text begins a line.
func stripIndent(text string, startsLine bool) string {
	line := strings.LastIndexByte(text, '\n') + 1
	if line == 0 && !startsLine {
		return text
	}
	if strings.TrimFunc(text[line:], unicode.IsSpace) == "" {
		return text[:line]
	}
	return text
}

// closing returns the sign before a closing bracket and how long sign and bracket are, or 0.
func closing(rest, bracket string) (sign byte, length int) {
	if strings.HasPrefix(rest, bracket) {
		return 0, 2
	}
	if len(rest) > 2 && (rest[0] == '-' || rest[0] == '+') && strings.HasPrefix(rest[1:], bracket) {
		return rest[0], 3
	}
	return 0, 0
}

func (l *lexer) comment() (sign byte, err error) {
	end := strings.Index(l.source[l.at:], "#}")
	if end < 0 {
		return 0, l.errorf("a comment without an end")
	}
	if end > 0 {
		if c := l.source[l.at+end-1]; c == '-' || c == '+' {
			sign = c
		}
	}
	l.advance(end + 2)
	return sign, nil
}

// rawBlock reads {% raw %}…{% endraw %}, with the opening bracket already read.
func (l *lexer) rawBlock() (found bool, sign byte, err error) {
	inner := strings.TrimLeft(l.source[l.at:], " \t\n")
	if !strings.HasPrefix(inner, "raw") {
		return false, 0, nil
	}
	after := strings.TrimLeft(inner[3:], " \t\n")
	first, length := closing(after, "%}")
	if length == 0 {
		return false, 0, nil
	}
	l.advance(len(l.source) - l.at - len(after) + length)
	body := l.source[l.at:]
	for from := 0; ; {
		begin := strings.Index(body[from:], "{%")
		if begin < 0 {
			return true, 0, l.errorf("raw without endraw")
		}
		begin += from
		from = begin + 2
		tail := body[from:]
		strip := byte(0)
		if tail != "" && (tail[0] == '-' || tail[0] == '+') {
			strip, tail = tail[0], tail[1:]
		}
		tail, isEnd := strings.CutPrefix(strings.TrimLeft(tail, " \t\n"), "endraw")
		tail = strings.TrimLeft(tail, " \t\n")
		last, length := closing(tail, "%}")
		if !isEnd || length == 0 {
			continue
		}
		text := body[:begin]
		if first == '-' { // trim_blocks is not for this tag
			text = strings.TrimLeftFunc(text, unicode.IsSpace)
		}
		if strip == '-' {
			text = strings.TrimRightFunc(text, unicode.IsSpace)
		} else if strip != '+' {
			text = stripIndent(text, false)
		}
		if text != "" {
			l.add(tokText, text)
		}
		l.advance(len(body) - len(tail) + length)
		return true, last, nil
	}
}

// operators, longest first.
var operators = []string{"//", "**", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "|"}

// expression reads the tokens up to the closing bracket. Inside brackets of its own, }} closes those.
func (l *lexer) expression(bracket string, end tokenKind) (sign byte, err error) {
	depth := 0
	for {
		rest := strings.TrimLeftFunc(l.source[l.at:], unicode.IsSpace)
		l.advance(len(l.source) - l.at - len(rest))
		if rest == "" {
			return 0, l.errorf("a tag without its %s", bracket)
		}
		if depth == 0 {
			if sign, length := closing(rest, bracket); length > 0 {
				l.add(end, "")
				l.advance(length)
				return sign, nil
			}
		}
		switch c := rest[0]; {
		case c == '"' || c == '\'':
			if err := l.stringLiteral(rest); err != nil {
				return 0, err
			}
		case c >= '0' && c <= '9':
			l.number(rest)
		case c == '_' || c >= utf8.RuneSelf || unicode.IsLetter(rune(c)):
			n := len(rest) - len(strings.TrimLeftFunc(rest, func(r rune) bool { return r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r) }))
			if n == 0 {
				return 0, l.errorf("unexpected %.8q", rest)
			}
			l.add(tokName, rest[:n])
			l.advance(n)
		default:
			found := ""
			for _, op := range operators {
				if strings.HasPrefix(rest, op) {
					found = op
					break
				}
			}
			switch found {
			case "":
				return 0, l.errorf("unexpected %q", c)
			case "(", "[", "{":
				depth++
			case ")", "]", "}":
				depth--
			}
			l.add(tokOperator, found)
			l.advance(len(found))
		}
	}
}

func (l *lexer) number(rest string) {
	digits := func(from int) int {
		for from < len(rest) && (rest[from] >= '0' && rest[from] <= '9' || rest[from] == '_') {
			from++
		}
		return from
	}
	n := digits(0)
	kind := tokInteger
	if n+1 < len(rest) && rest[n] == '.' && rest[n+1] >= '0' && rest[n+1] <= '9' {
		n, kind = digits(n+1), tokFloat
	}
	if n < len(rest) && (rest[n] == 'e' || rest[n] == 'E') {
		exponent := n + 1
		if exponent < len(rest) && (rest[exponent] == '-' || rest[exponent] == '+') {
			exponent++
		}
		if end := digits(exponent); end > exponent {
			n, kind = end, tokFloat
		}
	}
	l.add(kind, strings.ReplaceAll(rest[:n], "_", ""))
	l.advance(n)
}

func (l *lexer) stringLiteral(rest string) error {
	quote := rest[0]
	var b strings.Builder
	for i := 1; i < len(rest); i++ {
		switch c := rest[i]; {
		case c == quote:
			l.add(tokString, b.String())
			l.advance(i + 1)
			return nil
		case c != '\\' || i+1 == len(rest):
			b.WriteByte(c)
		default:
			i++
			hex := 0
			switch e := rest[i]; e {
			case 'n':
				b.WriteByte('\n')
			case 't':
				b.WriteByte('\t')
			case 'r':
				b.WriteByte('\r')
			case 'b':
				b.WriteByte('\b')
			case 'f':
				b.WriteByte('\f')
			case 'v':
				b.WriteByte('\v')
			case 'a':
				b.WriteByte('\a')
			case '\\', '\'', '"':
				b.WriteByte(e)
			case '\n':
			case 'x':
				hex = 2
			case 'u':
				hex = 4
			case 'U':
				hex = 8
			default:
				b.WriteByte('\\')
				b.WriteByte(e)
			}
			if hex > 0 {
				if i+hex >= len(rest) {
					return l.errorf("a string escape without its %d digits", hex)
				}
				code, err := strconv.ParseUint(rest[i+1:i+1+hex], 16, 32)
				if err != nil {
					return l.errorf("a string escape without its %d digits", hex)
				}
				b.WriteRune(rune(code))
				i += hex
			}
		}
	}
	return l.errorf("a string without an end")
}
