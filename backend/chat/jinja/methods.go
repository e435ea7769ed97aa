package jinja

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// methodOf returns a method of strings, dictionaries and lists, or nil.
func methodOf(of value, name string) value {
	switch of := of.(type) {
	case string:
		if m, ok := stringMethods[name]; ok {
			return function(func(r *render, a arguments) (value, error) {
				if err := r.spend(len(of)); err != nil {
					return nil, err
				}
				v, err := m(r, of, a)
				if err != nil {
					return nil, fmt.Errorf("%s: %w", name, err)
				}
				return v, nil
			})
		}
	case *Dict:
		if m, ok := dictMethods[name]; ok {
			return function(func(_ *render, a arguments) (value, error) { return m(of, a), nil })
		}
	case *List:
		switch name {
		case "index", "count":
			return function(func(_ *render, a arguments) (value, error) {
				n := 0
				for i, item := range of.Items {
					if equal(item, a.at(0, "", undefined{}), 0) {
						if n++; name == "index" {
							return i, nil
						}
					}
				}
				if name == "index" {
					return nil, errors.New("index: the list does not hold the value")
				}
				return n, nil
			})
		case "append", "extend", "insert", "pop", "remove", "clear", "sort", "reverse":
			return changing(name)
		}
	}
	return nil
}

// changing stands for the methods that Hugging Face's sandbox forbids, too.
func changing(name string) function {
	return func(*render, arguments) (value, error) {
		return nil, fmt.Errorf("%s would change a value, which templates cannot", name)
	}
}

var dictMethods = map[string]func(d *Dict, a arguments) value{
	"items": func(d *Dict, _ arguments) value { return pairsOf(d) },
	"keys":  func(d *Dict, _ arguments) value { return &List{Items: d.keys} },
	"values": func(d *Dict, _ arguments) value {
		list := &List{}
		for _, key := range d.keys {
			list.Items = append(list.Items, d.values[key])
		}
		return list
	},
	"get": func(d *Dict, a arguments) value {
		if v, ok := d.get(a.at(0, "", nil)); ok {
			return v
		}
		return a.at(1, "", nil)
	},
}

type stringMethod func(r *render, s string, a arguments) (value, error)

func plain(f func(s string) value) stringMethod {
	return func(_ *render, s string, _ arguments) (value, error) { return f(s), nil }
}

// every tells whether s has characters and all are of a kind.
func every(kind func(r rune) bool) stringMethod {
	return plain(func(s string) value {
		return s != "" && strings.IndexFunc(s, func(r rune) bool { return !kind(r) }) < 0
	})
}

func stripping(left, right bool) stringMethod {
	return func(_ *render, s string, a arguments) (value, error) {
		return strip(s, a.at(0, "chars", nil), left, right)
	}
}

// strip removes white space, or the given characters, from the ends.
func strip(s string, chars value, left, right bool) (string, error) {
	drop := isSpace
	switch set := chars.(type) {
	case nil:
	case string:
		drop = func(r rune) bool { return strings.ContainsRune(set, r) }
	default:
		return "", fmt.Errorf("characters to strip must be a string, not a %s", kindOf(chars))
	}
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s, nil
}

// affix is startswith and endswith, which take a string or a tuple of them.
func affix(has func(s, part string) bool) stringMethod {
	return func(_ *render, s string, a arguments) (value, error) {
		parts := []value{a.at(0, "", undefined{})}
		if l, ok := parts[0].(*List); ok {
			parts = l.Items
		}
		for _, part := range parts {
			p, ok := part.(string)
			if !ok {
				return nil, fmt.Errorf("expected a string, not a %s", kindOf(part))
			}
			if has(s, p) {
				return true, nil
			}
		}
		return false, nil
	}
}

func oneString(f func(s, other string) value) stringMethod {
	return func(_ *render, s string, a arguments) (value, error) {
		other, ok := a.at(0, "", undefined{}).(string)
		if !ok {
			return nil, fmt.Errorf("expected a string, not a %s", kindOf(a.at(0, "", undefined{})))
		}
		return f(s, other), nil
	}
}

// position is find and rfind, in characters.
func position(find func(s, part string) int) func(s, part string) value {
	return func(s, part string) value {
		at := find(s, part)
		if at < 0 {
			return -1
		}
		return utf8.RuneCountInString(s[:at])
	}
}

func partition(find func(s, part string) int, before bool) func(s, part string) value {
	return func(s, part string) value {
		parts := []any{s, "", ""}
		if !before {
			parts = []any{"", "", s}
		}
		if at := find(s, part); at >= 0 {
			parts = []any{s[:at], part, s[at+len(part):]}
		}
		return &List{Items: parts, Tuple: true}
	}
}

func listOfStrings(parts []string) *List {
	list := &List{Items: make([]any, len(parts))}
	for i, part := range parts {
		list.Items[i] = part
	}
	return list
}

// splitting is split and rsplit.
func splitting(fromRight bool) stringMethod {
	return func(r *render, s string, a arguments) (value, error) {
		limit, ok := integer(a.at(1, "maxsplit", -1))
		if !ok {
			return nil, errors.New("maxsplit must be an integer")
		}
		var parts []string
		switch separator := a.at(0, "sep", nil).(type) {
		case nil:
			parts = splitSpace(s, limit, fromRight)
		case string:
			if separator == "" {
				return nil, errors.New("the separator is empty")
			}
			parts = strings.Split(s, separator)
			if limit >= 0 && len(parts) > limit+1 {
				if fromRight {
					cut := len(parts) - limit
					parts = append([]string{strings.Join(parts[:cut], separator)}, parts[cut:]...)
				} else {
					parts = strings.SplitN(s, separator, limit+1)
				}
			}
		default:
			return nil, fmt.Errorf("the separator must be a string, not a %s", kindOf(separator))
		}
		r.steps += len(parts)
		return listOfStrings(parts), r.step()
	}
}

func splitSpace(s string, limit int, fromRight bool) []string {
	words := strings.FieldsFunc(s, isSpace)
	if limit < 0 || len(words) <= limit+1 {
		return words
	}
	var parts []string
	if fromRight {
		s = strings.TrimRightFunc(s, isSpace)
		for range limit {
			at := strings.LastIndexFunc(s, isSpace)
			_, size := utf8.DecodeRuneInString(s[at:])
			parts = append([]string{s[at+size:]}, parts...)
			s = strings.TrimRightFunc(s[:at], isSpace)
		}
		return append([]string{s}, parts...)
	}
	s = strings.TrimLeftFunc(s, isSpace)
	for range limit {
		at := strings.IndexFunc(s, isSpace)
		parts = append(parts, s[:at])
		s = strings.TrimLeftFunc(s[at:], isSpace)
	}
	return append(parts, s)
}

func splitLines(_ *render, s string, a arguments) (value, error) {
	keep := truth(a.at(0, "keepends", false))
	list := &List{}
	for s != "" {
		at := strings.IndexAny(s, "\n\r\v\f\x1c\x1d\x1e\u0085\u2028\u2029")
		if at < 0 {
			list.Items = append(list.Items, s)
			break
		}
		_, size := utf8.DecodeRuneInString(s[at:])
		if strings.HasPrefix(s[at:], "\r\n") {
			size = 2
		}
		if keep {
			list.Items = append(list.Items, s[:at+size])
		} else {
			list.Items = append(list.Items, s[:at])
		}
		s = s[at+size:]
	}
	return list, nil
}

func replace(r *render, s string, a arguments) (value, error) {
	old, oldOK := a.at(0, "old", nil).(string)
	new, newOK := a.at(1, "new", nil).(string)
	count, countOK := integer(a.at(2, "count", -1))
	if a.at(2, "count", -1) == nil {
		count, countOK = -1, true
	}
	if !oldOK || !newOK || !countOK {
		return nil, errors.New("replace takes two strings and a count")
	}
	n := strings.Count(s, old)
	if count >= 0 {
		n = min(n, count)
	}
	if len(new) > 0 && n > maxTextBytes/len(new) {
		return nil, r.spend(maxTextBytes + 1)
	}
	return strings.Replace(s, old, new, count), r.spend(len(s) + n*len(new))
}

// braceFormat is '…{}…{0}…{name}…'.format(), without format specifications.
func braceFormat(r *render, s string, a arguments) (value, error) {
	var b strings.Builder
	next := 0
	for i := 0; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], "{{"), strings.HasPrefix(s[i:], "}}"):
			b.WriteByte(s[i])
			i++
		case s[i] == '{':
			end := strings.IndexByte(s[i:], '}')
			if end < 0 {
				return nil, errors.New("a brace is not closed")
			}
			field := s[i+1 : i+end]
			i += end
			var v value = undefined{field}
			if field == "" {
				v = a.at(next, "", v)
				next++
			} else if position := strings.Trim(field, "0123456789"); position == "" && len(field) < 6 {
				n := 0
				fmt.Sscan(field, &n)
				v = a.at(n, "", v)
			} else if named, ok := a.named[field]; ok {
				v = named
			}
			if _, missing := v.(undefined); missing {
				return nil, fmt.Errorf("nothing to put into {%s}", field)
			}
			t := text(v)
			if err := r.spend(len(t)); err != nil {
				return nil, err
			}
			b.WriteString(t)
		default:
			b.WriteByte(s[i])
		}
	}
	return b.String(), nil
}

var stringMethods map[string]stringMethod

func init() { // joining looks up attributes, which may be methods
	stringMethods = map[string]stringMethod{
		"strip":        stripping(true, true),
		"lstrip":       stripping(true, false),
		"rstrip":       stripping(false, true),
		"split":        splitting(false),
		"rsplit":       splitting(true),
		"splitlines":   splitLines,
		"startswith":   affix(strings.HasPrefix),
		"endswith":     affix(strings.HasSuffix),
		"replace":      replace,
		"format":       braceFormat,
		"upper":        plain(func(s string) value { return strings.ToUpper(s) }),
		"lower":        plain(func(s string) value { return strings.ToLower(s) }),
		"title":        plain(func(s string) value { return title(s) }),
		"capitalize":   plain(func(s string) value { return capitalise(s) }),
		"isdigit":      every(unicode.IsDigit),
		"isalpha":      every(unicode.IsLetter),
		"isalnum":      every(func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }),
		"isspace":      every(isSpace),
		"find":         oneString(position(strings.Index)),
		"rfind":        oneString(position(strings.LastIndex)),
		"count":        oneString(func(s, part string) value { return strings.Count(s, part) }),
		"partition":    oneString(partition(strings.Index, true)),
		"rpartition":   oneString(partition(strings.LastIndex, false)),
		"removeprefix": oneString(func(s, part string) value { return strings.TrimPrefix(s, part) }),
		"removesuffix": oneString(func(s, part string) value { return strings.TrimSuffix(s, part) }),
		"join": func(r *render, s string, a arguments) (value, error) {
			return joinFilter(r, a.at(0, "", undefined{}), arguments{positional: []value{s}})
		},
	}
}
