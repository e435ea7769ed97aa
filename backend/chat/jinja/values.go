package jinja

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode"
)

// A value is one of: nil (None), undefined, bool, int, float64, string, *List, *Dict, *namespace, *loop, function.
type value = any

// undefined is what a name or member without a value gives: it prints as nothing and is an error in most operations.
type undefined struct{ name string }

// List is a list or, if Tuple, a tuple. Templates cannot change it.
type List struct {
	Items []any
	Tuple bool
}

// Dict is a dictionary that keeps the order of its keys. Templates cannot change it.
type Dict struct {
	keys   []any
	values map[any]any
}

// NewDict returns an empty dictionary.
func NewDict() *Dict { return &Dict{values: map[any]any{}} }

// Set adds or replaces a member; v is what Render takes.
func (d *Dict) Set(key string, v any) { d.set(key, fromGo(v)) }

func (d *Dict) set(key, v value) {
	if _, ok := d.values[key]; !ok {
		d.keys = append(d.keys, key)
	}
	d.values[key] = v
}

func (d *Dict) get(key any) (value, bool) {
	if !hashable(key) {
		return nil, false
	}
	v, ok := d.values[key]
	return v, ok
}

func hashable(v value) bool {
	switch v.(type) {
	case nil, bool, int, float64, string:
		return true
	}
	return false
}

// namespace is the one thing that templates can assign members of.
type namespace struct{ members map[string]value }

// arguments of a call.
type arguments struct {
	positional []value
	named      map[string]value
}

// at returns the argument at a position, or by its name.
func (a arguments) at(position int, name string, otherwise value) value {
	if position < len(a.positional) {
		return a.positional[position]
	}
	if v, ok := a.named[name]; ok {
		return v
	}
	return otherwise
}

type function func(r *render, a arguments) (value, error)

// fromGo turns what callers pass into values.
func fromGo(v any) value {
	switch v := v.(type) {
	case nil, bool, int, float64, string, *List, *Dict:
		return v
	case []any:
		list := &List{Items: make([]any, len(v))}
		for i := range v {
			list.Items[i] = fromGo(v[i])
		}
		return list
	case []string:
		list := &List{Items: make([]any, len(v))}
		for i := range v {
			list.Items[i] = v[i]
		}
		return list
	}
	panic(fmt.Sprintf("a %T is no template value", v))
}

func truth(v value) bool {
	switch v := v.(type) {
	case nil, undefined:
		return false
	case bool:
		return v
	case int:
		return v != 0
	case float64:
		return v != 0
	case string:
		return v != ""
	case *List:
		return len(v.Items) > 0
	case *Dict:
		return len(v.keys) > 0
	}
	return true
}

// text is Python's str().
func text(v value) string {
	if s, ok := v.(string); ok {
		return s
	}
	if _, ok := v.(undefined); ok {
		return ""
	}
	var b strings.Builder
	writeRepr(&b, v, 0)
	return b.String()
}

func writeRepr(b *strings.Builder, v value, depth int) {
	if depth > maxDepth {
		b.WriteString("...")
		return
	}
	switch v := v.(type) {
	case nil:
		b.WriteString("None")
	case undefined:
		b.WriteString("Undefined")
	case bool:
		if v {
			b.WriteString("True")
		} else {
			b.WriteString("False")
		}
	case int:
		b.WriteString(strconv.Itoa(v))
	case float64:
		b.WriteString(floatText(v))
	case string:
		b.WriteString(quoted(v))
	case *List:
		opening, closing := "[", "]"
		if v.Tuple {
			opening, closing = "(", ")"
			if len(v.Items) == 1 {
				closing = ",)"
			}
		}
		b.WriteString(opening)
		for i, item := range v.Items {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, item, depth+1)
		}
		b.WriteString(closing)
	case *Dict:
		b.WriteString("{")
		for i, key := range v.keys {
			if i > 0 {
				b.WriteString(", ")
			}
			writeRepr(b, key, depth+1)
			b.WriteString(": ")
			writeRepr(b, v.values[key], depth+1)
		}
		b.WriteString("}")
	default:
		fmt.Fprintf(b, "<%s>", kindOf(v))
	}
}

// floatText writes as Python's repr() does.
func floatText(f float64) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case math.IsNaN(f):
		return "nan"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}

// quoted writes a string as Python's repr() does.
func quoted(s string) string {
	quote := '\''
	if strings.ContainsRune(s, '\'') && !strings.ContainsRune(s, '"') {
		quote = '"'
	}
	var b strings.Builder
	b.WriteRune(quote)
	for _, r := range s {
		switch {
		case r == quote || r == '\\':
			b.WriteRune('\\')
			b.WriteRune(r)
		case r == '\n':
			b.WriteString(`\n`)
		case r == '\t':
			b.WriteString(`\t`)
		case r == '\r':
			b.WriteString(`\r`)
		case r < ' ' || r == 0x7F:
			fmt.Fprintf(&b, `\x%02x`, r)
		default:
			b.WriteRune(r)
		}
	}
	b.WriteRune(quote)
	return b.String()
}

func kindOf(v value) string {
	switch v := v.(type) {
	case nil:
		return "none"
	case undefined:
		return "undefined value"
	case bool:
		return "boolean"
	case int:
		return "integer"
	case float64:
		return "float"
	case string:
		return "string"
	case *List:
		if v.Tuple {
			return "tuple"
		}
		return "list"
	case *Dict:
		return "mapping"
	case *namespace:
		return "namespace"
	case *loop:
		return "loop"
	}
	return "function"
}

// describe names an undefined value by what was looked for.
func (u undefined) describe() error {
	if u.name == "" {
		return errors.New("a value is undefined")
	}
	return fmt.Errorf("%q is undefined", u.name)
}

func number(v value) (f float64, isFloat, ok bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, false, true
		}
		return 0, false, true
	case int:
		return float64(v), false, true
	case float64:
		return v, true, true
	}
	return 0, false, false
}

func integer(v value) (int, bool) {
	switch v := v.(type) {
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case int:
		return v, true
	}
	return 0, false
}

func equal(a, b value, depth int) bool {
	if depth > maxDepth {
		return false
	}
	if x, _, ok := number(a); ok {
		y, _, ok := number(b)
		return ok && x == y
	}
	switch a := a.(type) {
	case undefined:
		_, ok := b.(undefined)
		return ok
	case *List:
		b, ok := b.(*List)
		if !ok || a.Tuple != b.Tuple || len(a.Items) != len(b.Items) {
			return false
		}
		for i := range a.Items {
			if !equal(a.Items[i], b.Items[i], depth+1) {
				return false
			}
		}
		return true
	case *Dict:
		b, ok := b.(*Dict)
		if !ok || len(a.keys) != len(b.keys) {
			return false
		}
		for _, key := range a.keys {
			other, ok := b.values[key]
			if !ok || !equal(a.values[key], other, depth+1) {
				return false
			}
		}
		return true
	case function:
		return false
	}
	if _, ok := b.(function); ok {
		return false
	}
	return reflect.TypeOf(a) == reflect.TypeOf(b) && a == b
}

// less compares numbers with numbers, strings with strings, lists with lists.
func less(a, b value) (bool, error) {
	x, _, xOK := number(a)
	y, _, yOK := number(b)
	if xOK && yOK {
		return x < y, nil
	}
	if s, ok := a.(string); ok {
		if t, ok := b.(string); ok {
			return s < t, nil
		}
	}
	if l, ok := a.(*List); ok {
		if m, ok := b.(*List); ok {
			for i := range min(len(l.Items), len(m.Items)) {
				if !equal(l.Items[i], m.Items[i], 0) {
					return less(l.Items[i], m.Items[i])
				}
			}
			return len(l.Items) < len(m.Items), nil
		}
	}
	return false, fmt.Errorf("a %s and a %s cannot be compared", kindOf(a), kindOf(b))
}

func contains(container, item value) (bool, error) {
	switch c := container.(type) {
	case string:
		s, ok := item.(string)
		if !ok {
			return false, fmt.Errorf("a %s cannot be in a string", kindOf(item))
		}
		return strings.Contains(c, s), nil
	case *Dict:
		_, ok := c.get(item)
		return ok, nil
	case *List:
		for _, member := range c.Items {
			if equal(member, item, 0) {
				return true, nil
			}
		}
		return false, nil
	case undefined:
		return false, nil
	}
	return false, fmt.Errorf("nothing can be in a %s", kindOf(container))
}

// items lists what iterating over v gives.
func items(v value) ([]value, error) {
	switch v := v.(type) {
	case undefined:
		return nil, nil
	case *List:
		return v.Items, nil
	case *Dict:
		return v.keys, nil
	case string:
		list := make([]value, 0, len(v))
		for _, r := range v {
			list = append(list, string(r))
		}
		return list, nil
	}
	return nil, fmt.Errorf("a %s cannot be looped over", kindOf(v))
}

func length(v value) (int, error) {
	switch v := v.(type) {
	case undefined:
		return 0, nil
	case string:
		return len([]rune(v)), nil
	case *List:
		return len(v.Items), nil
	case *Dict:
		return len(v.keys), nil
	}
	return 0, fmt.Errorf("a %s has no length", kindOf(v))
}

// isSpace is what Python's str.strip() strips.
func isSpace(r rune) bool {
	return unicode.IsSpace(r) || r >= 0x1C && r <= 0x1F
}
