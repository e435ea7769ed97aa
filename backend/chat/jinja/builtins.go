package jinja

import (
	"errors"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"
)

type (
	filter func(r *render, v value, a arguments) (value, error)
	test   func(v value, a arguments) (value, error)
)

func raise(_ *render, a arguments) (value, error) {
	return nil, &RaisedError{text(a.at(0, "message", "the template gives no reason"))}
}

func newNamespace(_ *render, a arguments) (value, error) {
	n := &namespace{map[string]value{}}
	for _, v := range a.positional {
		d, ok := v.(*Dict)
		if !ok {
			return nil, errors.New("namespace takes names with values")
		}
		for _, key := range d.keys {
			n.members[text(key)] = d.values[key]
		}
	}
	for name, v := range a.named {
		n.members[name] = v
	}
	return n, nil
}

func newDict(_ *render, a arguments) (value, error) {
	d := NewDict()
	if from, ok := a.at(0, "", nil).(*Dict); ok {
		for _, key := range from.keys {
			d.set(key, from.values[key])
		}
	}
	names := make([]string, 0, len(a.named))
	for name := range a.named {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		d.set(name, a.named[name])
	}
	return d, nil
}

func rangeOf(r *render, a arguments) (value, error) {
	bounds := []int{0, 0, 1}
	for i, v := range a.positional {
		n, ok := integer(v)
		if !ok || i > 2 {
			return nil, errors.New("range takes one to three integers")
		}
		bounds[i] = n
	}
	switch len(a.positional) {
	case 0:
		return nil, errors.New("range takes one to three integers")
	case 1:
		bounds[0], bounds[1] = 0, bounds[0]
	}
	if bounds[2] == 0 {
		return nil, errors.New("range with a step of 0")
	}
	list := &List{}
	for i := bounds[0]; bounds[2] > 0 && i < bounds[1] || bounds[2] < 0 && i > bounds[1]; i += bounds[2] {
		if err := r.step(); err != nil {
			return nil, err
		}
		list.Items = append(list.Items, i)
	}
	return list, nil
}

// strftimeNow formats the date as Python does; some templates tell the model today's.
func strftimeNow(_ *render, a arguments) (value, error) {
	layouts := map[byte]string{'Y': "2006", 'm': "01", 'd': "02", 'B': "January", 'b': "Jan", 'A': "Monday", 'a': "Mon",
		'H': "15", 'I': "03", 'M': "04", 'S': "05", 'p': "PM", 'y': "06", 'j': "002"}
	format := text(a.at(0, "format", ""))
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' || i+1 == len(format) {
			b.WriteByte(format[i])
			continue
		}
		i++
		layout, ok := layouts[format[i]]
		switch {
		case format[i] == '%':
			b.WriteByte('%')
		case ok:
			b.WriteString(now().Format(layout))
		default:
			return nil, fmt.Errorf("strftime_now does not know %%%c", format[i])
		}
	}
	return b.String(), nil
}

// percentFormat is Python's '…' % values, for %s, %d, %i, %f and %r.
func percentFormat(format string, v value) (value, error) {
	values := []value{v}
	if l, ok := v.(*List); ok && l.Tuple {
		values = l.Items
	}
	var b strings.Builder
	for i := 0; i < len(format); i++ {
		if format[i] != '%' {
			b.WriteByte(format[i])
			continue
		}
		begin := i
		for i++; i < len(format) && strings.IndexByte("0123456789.-+ ", format[i]) >= 0; i++ {
		}
		if i == len(format) {
			return nil, errors.New("a format ends in the middle of a code")
		}
		if format[i] == '%' {
			b.WriteByte('%')
			continue
		}
		if i-begin > 8 {
			return nil, errors.New("a format code is too wide")
		}
		if len(values) == 0 {
			return nil, errors.New("more format codes than values")
		}
		value := values[0]
		values = values[1:]
		code := format[begin:i]
		switch format[i] {
		case 's':
			fmt.Fprintf(&b, code+"s", text(value))
		case 'd', 'i', 'f':
			f, _, ok := number(value)
			if !ok {
				return nil, fmt.Errorf("%%%c needs a number, not a %s", format[i], kindOf(value))
			}
			if format[i] == 'f' {
				fmt.Fprintf(&b, code+"f", f)
			} else {
				fmt.Fprintf(&b, code+"d", int(f))
			}
		case 'r':
			var repr strings.Builder
			writeRepr(&repr, value, 0)
			fmt.Fprintf(&b, code+"s", repr.String())
		default:
			return nil, fmt.Errorf("the format code %%%c is not supported", format[i])
		}
	}
	if _, isTuple := v.(*List); isTuple && len(values) > 0 {
		return nil, errors.New("more values than format codes")
	}
	return b.String(), nil
}

func stringFilter(change func(s string) string) filter {
	return func(r *render, v value, _ arguments) (value, error) {
		s := change(text(v))
		return s, r.spend(len(s))
	}
}

func capitalise(s string) string {
	runes := []rune(strings.ToLower(s))
	if len(runes) > 0 {
		runes[0] = unicode.ToUpper(runes[0])
	}
	return string(runes)
}

func title(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		was := inWord
		inWord = unicode.IsLetter(r)
		if inWord && !was {
			return unicode.ToTitle(r)
		}
		return unicode.ToLower(r)
	}, s)
}

// attribute follows a dotted path, whose parts may be positions.
func attribute(r *render, v value, path value) (value, error) {
	for _, part := range strings.Split(text(path), ".") {
		var at value = part
		if n, err := strconv.Atoi(part); err == nil {
			at = n
		}
		var err error
		if v, err = itemAt(r, v, at); err != nil {
			return nil, err
		}
	}
	return v, nil
}

// selecting is select, reject, selectattr and rejectattr.
func selecting(byAttribute, keep bool) filter {
	return func(r *render, v value, a arguments) (value, error) {
		list, err := items(v)
		if err != nil {
			return nil, err
		}
		args := a.positional
		var path value
		if byAttribute {
			if len(args) == 0 {
				return nil, errors.New("the name of the attribute is missing")
			}
			path, args = args[0], args[1:]
		}
		check := test(func(v value, _ arguments) (value, error) { return truth(v), nil })
		if len(args) > 0 {
			if check = tests[text(args[0])]; check == nil {
				return nil, fmt.Errorf("there is no test %q", text(args[0]))
			}
			args = args[1:]
		}
		kept := &List{}
		for _, item := range list {
			if err := r.step(); err != nil {
				return nil, err
			}
			tested := item
			if byAttribute {
				if tested, err = attribute(r, item, path); err != nil {
					return nil, err
				}
			}
			holds, err := check(tested, arguments{positional: args})
			if err != nil {
				return nil, err
			}
			if truth(holds) == keep {
				kept.Items = append(kept.Items, item)
			}
		}
		return kept, nil
	}
}

func mapFilter(r *render, v value, a arguments) (value, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	out := &List{}
	path, byAttribute := a.named["attribute"]
	for _, item := range list {
		if err := r.step(); err != nil {
			return nil, err
		}
		var mapped value
		if byAttribute {
			mapped, err = attribute(r, item, path)
			if _, missing := mapped.(undefined); missing {
				if otherwise, ok := a.named["default"]; ok {
					mapped = otherwise
				}
			}
		} else {
			if len(a.positional) == 0 {
				return nil, errors.New("the name of a filter is missing")
			}
			f := filters[text(a.positional[0])]
			if f == nil {
				return nil, fmt.Errorf("there is no filter %q", text(a.positional[0]))
			}
			mapped, err = f(r, item, arguments{a.positional[1:], a.named})
		}
		if err != nil {
			return nil, err
		}
		out.Items = append(out.Items, mapped)
	}
	return out, nil
}

// ends is first and last.
func ends(position int) filter {
	return func(r *render, v value, _ arguments) (value, error) {
		list, err := items(v)
		if err != nil || len(list) == 0 {
			return undefined{}, err
		}
		if position < 0 {
			return list[len(list)-1], nil
		}
		return list[0], nil
	}
}

// extreme is min and max, by sign.
func extreme(sign int) filter {
	return func(_ *render, v value, _ arguments) (value, error) {
		list, err := items(v)
		if err != nil || len(list) == 0 {
			return undefined{}, err
		}
		best := list[0]
		for _, item := range list[1:] {
			isLess, err := less(item, best)
			if err != nil {
				return nil, err
			}
			if isLess == (sign < 0) && !equal(item, best, 0) {
				best = item
			}
		}
		return best, nil
	}
}

func joinFilter(r *render, v value, a arguments) (value, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	separator := text(a.at(0, "d", ""))
	parts := make([]string, len(list))
	size := 0
	for i, item := range list {
		if path, ok := a.named["attribute"]; ok {
			if item, err = attribute(r, item, path); err != nil {
				return nil, err
			}
		}
		parts[i] = text(item)
		size += len(parts[i]) + len(separator)
	}
	if err := r.spend(size); err != nil {
		return nil, err
	}
	return strings.Join(parts, separator), nil
}

func sortFilter(r *render, v value, a arguments) (value, error) {
	list, err := items(v)
	if err != nil {
		return nil, err
	}
	type keyed struct{ key, item value }
	sorted := make([]keyed, len(list))
	for i, item := range list {
		key := item
		if path, ok := a.named["attribute"]; ok {
			if key, err = attribute(r, item, path); err != nil {
				return nil, err
			}
		}
		if s, ok := key.(string); ok && !truth(a.at(1, "case_sensitive", false)) {
			key = strings.ToLower(s)
		}
		sorted[i] = keyed{key, item}
	}
	reverse := truth(a.at(0, "reverse", false))
	slices.SortStableFunc(sorted, func(x, y keyed) int {
		if reverse {
			x, y = y, x
		}
		if isLess, e := less(x.key, y.key); e != nil {
			err = e
		} else if isLess {
			return -1
		}
		if isLess, e := less(y.key, x.key); e == nil && isLess {
			return 1
		}
		return 0
	})
	out := &List{}
	for _, s := range sorted {
		out.Items = append(out.Items, s.item)
	}
	return out, err
}

func indentFilter(r *render, v value, a arguments) (value, error) {
	width, _ := integer(a.at(0, "width", 4))
	first, blank := truth(a.at(1, "first", false)), truth(a.at(2, "blank", false))
	lines := strings.Split(text(v), "\n")
	if width < 0 || width > 1000 {
		return nil, fmt.Errorf("a width of %d", width)
	}
	if err := r.spend(len(lines) * width); err != nil {
		return nil, err
	}
	for i := range lines {
		if (i > 0 || first) && (blank || strings.TrimSpace(lines[i]) != "") {
			lines[i] = strings.Repeat(" ", width) + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}

func pairsOf(d *Dict) *List {
	list := &List{}
	for _, key := range d.keys {
		list.Items = append(list.Items, &List{Items: []any{key, d.values[key]}, Tuple: true})
	}
	return list
}

var filters map[string]filter

func init() { // filters and tests refer to themselves
	filters = map[string]filter{
		"trim": func(r *render, v value, a arguments) (value, error) {
			s, err := strip(text(v), a.at(0, "chars", nil), true, true)
			return s, errors.Join(err, r.spend(len(text(v))))
		},
		"upper":      stringFilter(strings.ToUpper),
		"lower":      stringFilter(strings.ToLower),
		"capitalize": stringFilter(capitalise),
		"title":      stringFilter(title),
		"string":     stringFilter(func(s string) string { return s }),
		"safe":       stringFilter(func(s string) string { return s }),
		"escape":     stringFilter(html.EscapeString),
		"length":     func(_ *render, v value, _ arguments) (value, error) { return length(v) },
		"default": func(_ *render, v value, a arguments) (value, error) {
			_, missing := v.(undefined)
			if missing || truth(a.at(1, "boolean", false)) && !truth(v) {
				return a.at(0, "default_value", ""), nil
			}
			return v, nil
		},
		"replace": func(r *render, v value, a arguments) (value, error) { return replace(r, text(v), a) },
		"join":    joinFilter,
		"first":   ends(0),
		"last":    ends(-1),
		"list": func(_ *render, v value, _ arguments) (value, error) {
			list, err := items(v)
			return &List{Items: list}, err
		},
		"items": func(_ *render, v value, _ arguments) (value, error) {
			switch v := v.(type) {
			case *Dict:
				return pairsOf(v), nil
			case undefined:
				return &List{}, nil
			}
			return nil, fmt.Errorf("a %s has no items", kindOf(v))
		},
		"dictsort": func(r *render, v value, _ arguments) (value, error) {
			d, ok := v.(*Dict)
			if !ok {
				return nil, fmt.Errorf("a %s has no keys", kindOf(v))
			}
			return sortFilter(r, pairsOf(d), arguments{named: map[string]value{"attribute": "0"}})
		},
		"map":        mapFilter,
		"select":     selecting(false, true),
		"reject":     selecting(false, false),
		"selectattr": selecting(true, true),
		"rejectattr": selecting(true, false),
		"sort":       sortFilter,
		"min":        extreme(-1),
		"max":        extreme(1),
		"sum": func(r *render, v value, a arguments) (value, error) {
			list, err := items(v)
			total := a.at(1, "start", 0)
			for _, item := range list {
				if path := a.at(0, "attribute", nil); err == nil && path != nil {
					item, err = attribute(r, item, path)
				}
				if err == nil {
					total, err = arithmetic(r, "+", total, item)
				}
			}
			return total, err
		},
		"unique": func(r *render, v value, _ arguments) (value, error) {
			list, err := items(v)
			out := &List{}
			for _, item := range list {
				r.steps += len(out.Items)
				if err := r.step(); err != nil {
					return nil, err
				}
				if there, _ := contains(out, item); !there {
					out.Items = append(out.Items, item)
				}
			}
			return out, err
		},
		"reverse": func(r *render, v value, _ arguments) (value, error) {
			if s, ok := v.(string); ok {
				runes := []rune(s)
				slices.Reverse(runes)
				return string(runes), r.spend(len(s))
			}
			list, err := items(v)
			list = slices.Clone(list)
			slices.Reverse(list)
			return &List{Items: list}, err
		},
		"abs": func(_ *render, v value, _ arguments) (value, error) {
			f, isFloat, ok := number(v)
			switch {
			case !ok:
				return nil, fmt.Errorf("a %s has no absolute value", kindOf(v))
			case isFloat:
				return math.Abs(f), nil
			}
			return int(math.Abs(f)), nil
		},
		"int": func(_ *render, v value, a arguments) (value, error) {
			if f, _, ok := number(v); ok && !math.IsNaN(f) && math.Abs(f) < 1<<62 {
				return int(f), nil
			}
			if s, ok := v.(string); ok {
				if n, err := strconv.Atoi(strings.TrimSpace(s)); err == nil {
					return n, nil
				}
				if f, err := strconv.ParseFloat(strings.TrimSpace(s), 64); err == nil && math.Abs(f) < 1<<62 {
					return int(f), nil
				}
			}
			return a.at(0, "default", 0), nil
		},
		"float": func(_ *render, v value, a arguments) (value, error) {
			if f, _, ok := number(v); ok {
				return f, nil
			}
			if f, err := strconv.ParseFloat(strings.TrimSpace(text(v)), 64); err == nil {
				return f, nil
			}
			return a.at(0, "default", 0.0), nil
		},
		"round": func(_ *render, v value, a arguments) (value, error) {
			f, _, ok := number(v)
			places, _ := integer(a.at(0, "precision", 0))
			if !ok || places < 0 || places > 15 {
				return nil, fmt.Errorf("a %s cannot be rounded to %d places", kindOf(v), places)
			}
			scale := math.Pow(10, float64(places))
			switch text(a.at(1, "method", "common")) {
			case "ceil":
				return math.Ceil(f*scale) / scale, nil
			case "floor":
				return math.Floor(f*scale) / scale, nil
			}
			return math.RoundToEven(f*scale) / scale, nil
		},
		"indent": indentFilter,
		"tojson": toJSON,
	}
	filters["count"] = filters["length"]
	filters["d"] = filters["default"]
	filters["e"] = filters["escape"]

	is := func(check func(v value) bool) test {
		return func(v value, _ arguments) (value, error) { return check(v), nil }
	}
	ofType := func(kinds ...string) test {
		return is(func(v value) bool { return slices.Contains(kinds, kindOf(v)) })
	}
	compare := func(op string) test {
		return func(v value, a arguments) (value, error) {
			c := comparison{literal{v}, []string{op}, []expression{literal{a.at(0, "", nil)}}}
			return c.eval(nil, nil)
		}
	}
	remainder := func(want int) test {
		return func(v value, _ arguments) (value, error) {
			n, ok := integer(v)
			if !ok {
				return nil, fmt.Errorf("a %s is neither odd nor even", kindOf(v))
			}
			return n&1 == want, nil
		}
	}
	tests = map[string]test{
		"defined":   is(func(v value) bool { _, missing := v.(undefined); return !missing }),
		"undefined": ofType("undefined value"),
		"none":      ofType("none"),
		"boolean":   ofType("boolean"),
		"true":      is(func(v value) bool { return v == true }),
		"false":     is(func(v value) bool { return v == false }),
		"string":    ofType("string"),
		"integer":   ofType("integer"),
		"float":     ofType("float"),
		"number":    ofType("integer", "float", "boolean"),
		"mapping":   ofType("mapping"),
		"sequence":  ofType("string", "list", "tuple", "mapping"),
		"iterable":  ofType("string", "list", "tuple", "mapping", "undefined value"),
		"callable":  ofType("function"),
		"even":      remainder(0),
		"odd":       remainder(1),
		"lower":     is(func(v value) bool { s := text(v); return s == strings.ToLower(s) && s != strings.ToUpper(s) }),
		"upper":     is(func(v value) bool { s := text(v); return s == strings.ToUpper(s) && s != strings.ToLower(s) }),
		"divisibleby": func(v value, a arguments) (value, error) {
			n, _ := integer(v)
			by, _ := integer(a.at(0, "num", 0))
			if by == 0 {
				return nil, errors.New("division by zero")
			}
			return n%by == 0, nil
		},
		"sameas": func(v value, a arguments) (value, error) {
			other := a.at(0, "other", nil)
			return kindOf(v) == kindOf(other) && equal(v, other, 0), nil
		},
		"in": compare("in"), "eq": compare("=="), "equalto": compare("=="), "==": compare("=="), "ne": compare("!="), "!=": compare("!="),
		"lt": compare("<"), "lessthan": compare("<"), "<": compare("<"), "le": compare("<="), "<=": compare("<="),
		"gt": compare(">"), "greaterthan": compare(">"), ">": compare(">"), "ge": compare(">="), ">=": compare(">="),
	}
}

var tests map[string]test
