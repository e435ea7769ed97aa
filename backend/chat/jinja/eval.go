package jinja

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
)

func (l literal) eval(*render, *scope) (value, error) { return l.value, nil }

func (n *name) eval(r *render, s *scope) (value, error) { return s.get(n.name), r.step() }

func evalAll(r *render, s *scope, list []expression) ([]value, error) {
	values := make([]value, len(list))
	for i, e := range list {
		var err error
		if values[i], err = e.eval(r, s); err != nil {
			return nil, err
		}
	}
	return values, nil
}

func (l *listOf) eval(r *render, s *scope) (value, error) {
	values, err := evalAll(r, s, l.items)
	return &List{Items: values, Tuple: l.tuple}, err
}

func (d *dictOf) eval(r *render, s *scope) (value, error) {
	dict := NewDict()
	for i := range d.keys {
		key, err := d.keys[i].eval(r, s)
		if err != nil {
			return nil, err
		}
		if !hashable(key) {
			return nil, fmt.Errorf("a %s cannot be a key", kindOf(key))
		}
		v, err := d.values[i].eval(r, s)
		if err != nil {
			return nil, err
		}
		dict.set(key, v)
	}
	return dict, nil
}

func (u *unary) eval(r *render, s *scope) (value, error) {
	v, err := u.operand.eval(r, s)
	if err != nil {
		return nil, err
	}
	if u.op == "not" {
		return !truth(v), nil
	}
	f, isFloat, ok := number(v)
	if !ok {
		return nil, fmt.Errorf("%s cannot be put before a %s", u.op, kindOf(v))
	}
	if u.op == "-" {
		f = -f
	}
	if isFloat {
		return f, nil
	}
	return int(f), nil
}

func (c *conditional) eval(r *render, s *scope) (value, error) {
	v, err := c.condition.eval(r, s)
	if err != nil {
		return nil, err
	}
	if truth(v) {
		return c.yes.eval(r, s)
	}
	if c.no == nil {
		return undefined{}, nil
	}
	return c.no.eval(r, s)
}

func (b *binary) eval(r *render, s *scope) (value, error) {
	if err := r.step(); err != nil {
		return nil, err
	}
	left, err := b.left.eval(r, s)
	if err != nil {
		return nil, err
	}
	if b.op == "and" && !truth(left) || b.op == "or" && truth(left) {
		return left, nil
	}
	right, err := b.right.eval(r, s)
	if err != nil || b.op == "and" || b.op == "or" {
		return right, err
	}
	if b.op == "~" {
		return joined(r, text(left), text(right))
	}
	for _, v := range []value{left, right} {
		if u, ok := v.(undefined); ok {
			return nil, u.describe()
		}
	}
	return arithmetic(r, b.op, left, right)
}

func joined(r *render, x, y string) (value, error) {
	if err := r.spend(len(x) + len(y)); err != nil {
		return nil, err
	}
	return x + y, nil
}

func arithmetic(r *render, op string, left, right value) (value, error) {
	wrong := fmt.Errorf("%s is not defined for a %s and a %s", op, kindOf(left), kindOf(right))
	if x, ok := left.(string); ok {
		switch y, isString := right.(string); {
		case op == "+" && isString:
			return joined(r, x, y)
		case op == "%":
			return percentFormat(x, right)
		}
	}
	if op == "*" {
		times, ok := integer(right)
		what := left
		if !ok {
			times, ok = integer(left)
			what = right
		}
		times = max(times, 0)
		switch what := what.(type) {
		case string:
			if !ok {
				return nil, wrong
			}
			if len(what) > 0 && times > maxTextBytes/len(what) {
				return nil, r.spend(maxTextBytes + 1)
			}
			return strings.Repeat(what, times), r.spend(len(what) * times)
		case *List:
			if !ok {
				return nil, wrong
			}
			if len(what.Items) > 0 && times > maxSteps/len(what.Items) {
				return nil, errors.New("a list is repeated too often")
			}
			r.steps += len(what.Items) * times
			return &List{Items: slices.Repeat(what.Items, times), Tuple: what.Tuple}, r.step()
		}
	}
	if x, ok := left.(*List); ok {
		if y, ok := right.(*List); ok && op == "+" && x.Tuple == y.Tuple {
			r.steps += len(x.Items) + len(y.Items)
			return &List{Items: slices.Concat(x.Items, y.Items), Tuple: x.Tuple}, r.step()
		}
	}
	x, xFloat, xOK := number(left)
	y, yFloat, yOK := number(right)
	if !xOK || !yOK {
		return nil, wrong
	}
	if y == 0 && (op == "/" || op == "//" || op == "%") {
		return nil, errors.New("division by zero")
	}
	whole := !xFloat && !yFloat
	i, _ := integer(left)
	j, _ := integer(right)
	switch {
	case op == "+" && whole:
		return i + j, nil
	case op == "-" && whole:
		return i - j, nil
	case op == "*" && whole:
		return i * j, nil
	case op == "//" && whole:
		return int(math.Floor(x / y)), nil
	case op == "%" && whole:
		return ((i % j) + j) % j, nil
	}
	switch op {
	case "+":
		return x + y, nil
	case "-":
		return x - y, nil
	case "*":
		return x * y, nil
	case "/":
		return x / y, nil
	case "//":
		return math.Floor(x / y), nil
	case "%":
		return x - y*math.Floor(x/y), nil
	}
	power := math.Pow(x, y) // op is **
	if whole && j >= 0 && math.Abs(power) < 1<<53 {
		return int(power), nil
	}
	return power, nil
}

func (c *comparison) eval(r *render, s *scope) (value, error) {
	left, err := c.first.eval(r, s)
	if err != nil {
		return nil, err
	}
	for i, op := range c.ops {
		right, err := c.rest[i].eval(r, s)
		if err != nil {
			return nil, err
		}
		var holds bool
		switch op {
		case "==":
			holds = equal(left, right, 0)
		case "!=":
			holds = !equal(left, right, 0)
		case "in":
			holds, err = contains(right, left)
		case "not in":
			holds, err = contains(right, left)
			holds = !holds
		case "<":
			holds, err = less(left, right)
		case ">":
			holds, err = less(right, left)
		case "<=":
			holds, err = less(right, left)
			holds = !holds
		case ">=":
			holds, err = less(left, right)
			holds = !holds
		}
		if err != nil || !holds {
			return false, err
		}
		left = right
	}
	return true, nil
}

func (m *member) eval(r *render, s *scope) (value, error) {
	of, err := m.of.eval(r, s)
	if err != nil {
		return nil, err
	}
	if method := methodOf(of, m.name); method != nil {
		return method, nil
	}
	switch of := of.(type) {
	case undefined:
		return nil, of.describe()
	case *Dict:
		if v, ok := of.get(m.name); ok {
			return v, nil
		}
	case *namespace:
		if v, ok := of.members[m.name]; ok {
			return v, nil
		}
	case *loop:
		return of.member(m.name), nil
	}
	return undefined{m.name}, nil
}

func (i *index) eval(r *render, s *scope) (value, error) {
	of, err := i.of.eval(r, s)
	if err != nil {
		return nil, err
	}
	at, err := i.at.eval(r, s)
	if err != nil {
		return nil, err
	}
	return itemAt(r, of, at)
}

func itemAt(r *render, of, at value) (value, error) {
	if u, ok := of.(undefined); ok {
		return nil, u.describe()
	}
	if position, ok := integer(at); ok {
		var size int
		switch of := of.(type) {
		case *List:
			size = len(of.Items)
		case string:
			size = len(of)
		default:
			size = -1
		}
		if size >= 0 {
			switch of := of.(type) {
			case *List:
				if position < 0 {
					position += size
				}
				if position >= 0 && position < size {
					return of.Items[position], nil
				}
			case string:
				runes := []rune(of)
				if err := r.spend(size); err != nil {
					return nil, err
				}
				if position < 0 {
					position += len(runes)
				}
				if position >= 0 && position < len(runes) {
					return string(runes[position]), nil
				}
			}
			return undefined{fmt.Sprintf("item %d", position)}, nil
		}
	}
	switch of := of.(type) {
	case *Dict:
		if v, ok := of.get(at); ok {
			return v, nil
		}
	case *namespace:
		if key, ok := at.(string); ok {
			if v, ok := of.members[key]; ok {
				return v, nil
			}
		}
	}
	if key, ok := at.(string); ok {
		if method := methodOf(of, key); method != nil {
			return method, nil
		}
		if l, ok := of.(*loop); ok {
			return l.member(key), nil
		}
	}
	return undefined{text(at)}, nil
}

func (x *slice) eval(r *render, s *scope) (value, error) {
	of, err := x.of.eval(r, s)
	if err != nil {
		return nil, err
	}
	var bounds [3]*int
	for i, e := range []expression{x.from, x.to, x.step} {
		if e == nil {
			continue
		}
		v, err := e.eval(r, s)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		n, ok := integer(v)
		if !ok {
			return nil, fmt.Errorf("a %s cannot bound a slice", kindOf(v))
		}
		bounds[i] = &n
	}
	switch of := of.(type) {
	case string:
		if err := r.spend(len(of)); err != nil {
			return nil, err
		}
		runes, err := sliced([]rune(of), bounds)
		return string(runes), err
	case *List:
		r.steps += len(of.Items)
		list, err := sliced(of.Items, bounds)
		return &List{Items: list, Tuple: of.Tuple}, err
	case undefined:
		return nil, of.describe()
	}
	return nil, fmt.Errorf("a %s cannot be sliced", kindOf(of))
}

// sliced is Python's list[from:to:step].
func sliced[T any](list []T, bounds [3]*int) ([]T, error) {
	step, n := 1, len(list)
	if bounds[2] != nil {
		step = *bounds[2]
	}
	if step == 0 {
		return nil, errors.New("a slice with a step of 0")
	}
	low, high := 0, n // the range that positions are clipped to
	from, to := 0, n
	if step < 0 {
		low, high = -1, n-1
		from, to = n-1, -1
	}
	clip := func(bound *int, otherwise int) int {
		if bound == nil {
			return otherwise
		}
		at := *bound
		if at < 0 {
			at += n
		}
		return max(low, min(at, high))
	}
	from, to = clip(bounds[0], from), clip(bounds[1], to)
	var out []T
	for i := from; step > 0 && i < to || step < 0 && i > to; i += step {
		out = append(out, list[i])
	}
	return out, nil
}

func (a *callArguments) eval(r *render, s *scope) (arguments, error) {
	positional, err := evalAll(r, s, a.positional)
	if err != nil {
		return arguments{}, err
	}
	named := map[string]value{}
	for i, name := range a.names {
		if named[name], err = a.named[i].eval(r, s); err != nil {
			return arguments{}, err
		}
	}
	return arguments{positional, named}, nil
}

func (c *call) prepare(r *render, s *scope) (function, arguments, error) {
	of, err := c.of.eval(r, s)
	if err != nil {
		return nil, arguments{}, err
	}
	a, err := c.args.eval(r, s)
	if err != nil {
		return nil, arguments{}, err
	}
	switch of := of.(type) {
	case function:
		return of, a, nil
	case *loop:
		if of.again != nil {
			return of.again, a, nil
		}
	case undefined:
		return nil, arguments{}, of.describe()
	}
	return nil, arguments{}, fmt.Errorf("a %s cannot be called", kindOf(of))
}

func (c *call) eval(r *render, s *scope) (value, error) {
	of, a, err := c.prepare(r, s)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	return of(r, a)
}

func (f *filtered) eval(r *render, s *scope) (value, error) {
	of, err := f.of.eval(r, s)
	if err != nil {
		return nil, err
	}
	a, err := f.args.eval(r, s)
	if err != nil {
		return nil, err
	}
	if err := r.step(); err != nil {
		return nil, err
	}
	v, err := f.filter(r, of, a)
	if err != nil {
		return nil, fmt.Errorf("filter %s: %w", f.name, err)
	}
	return v, nil
}

func (t *tested) eval(r *render, s *scope) (value, error) {
	of, err := t.of.eval(r, s)
	if err != nil {
		return nil, err
	}
	a, err := t.args.eval(r, s)
	if err != nil {
		return nil, err
	}
	return t.test(of, a)
}
