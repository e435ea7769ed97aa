package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

func (t textOut) run(r *render, _ *scope) error {
	if err := r.spend(len(t.text)); err != nil {
		return err
	}
	r.out.WriteString(t.text)
	return nil
}

func (o output) run(r *render, s *scope) error {
	v, err := o.expression.eval(r, s)
	if err != nil {
		return err
	}
	return textOut{text(v)}.run(r, s)
}

func (a atLine) run(r *render, s *scope) error {
	if err := r.step(); err != nil {
		return err
	}
	err := a.statement.run(r, s)
	if err == nil || err == errBreak || err == errContinue {
		return err
	}
	var inner *lineError
	if errors.As(err, &inner) {
		return err
	}
	return &lineError{a.line, err}
}

func (i *ifElse) run(r *render, s *scope) error {
	v, err := i.condition.eval(r, s)
	if err != nil {
		return err
	}
	if truth(v) {
		return r.runAll(i.yes, s)
	}
	return r.runAll(i.no, s)
}

func (l loopControl) run(*render, *scope) error { return l.signal }

// loop is what templates know as loop.
type loop struct {
	items []value
	at    int
	depth int
	again function // of recursive loops: loop(items)
	last  []value  // the arguments of loop.changed
}

func (l *loop) member(name string) value {
	n := len(l.items)
	switch name {
	case "index":
		return l.at + 1
	case "index0":
		return l.at
	case "revindex":
		return n - l.at
	case "revindex0":
		return n - l.at - 1
	case "first":
		return l.at == 0
	case "last":
		return l.at == n-1
	case "length":
		return n
	case "depth":
		return l.depth
	case "depth0":
		return l.depth - 1
	case "previtem":
		if l.at > 0 {
			return l.items[l.at-1]
		}
	case "nextitem":
		if l.at < n-1 {
			return l.items[l.at+1]
		}
	case "cycle":
		return function(func(_ *render, a arguments) (value, error) {
			if len(a.positional) == 0 {
				return nil, errors.New("loop.cycle needs values")
			}
			return a.positional[l.at%len(a.positional)], nil
		})
	case "changed":
		return function(func(_ *render, a arguments) (value, error) {
			same := l.last != nil && equal(&List{Items: l.last}, &List{Items: a.positional}, 0)
			l.last = slices.Clone(a.positional)
			return !same, nil
		})
	}
	return undefined{"loop." + name}
}

func (f *forLoop) run(r *render, s *scope) error {
	over, err := f.over.eval(r, s)
	if err != nil {
		return err
	}
	return f.overItems(r, s, over, 1)
}

func (f *forLoop) overItems(r *render, s *scope, over value, depth int) error {
	if r.calls++; r.calls > maxCalls {
		return fmt.Errorf("more than %d macros and recursive loops in each other", maxCalls)
	}
	defer func() { r.calls-- }()
	list, err := items(over)
	if err != nil {
		return err
	}
	if f.condition != nil {
		var kept []value
		for _, item := range list {
			inner := s.inner()
			if err := assignTo(inner, f.targets, item); err != nil {
				return err
			}
			v, err := f.condition.eval(r, inner)
			if err != nil {
				return err
			}
			if truth(v) {
				kept = append(kept, item)
			}
		}
		list = kept
	}
	if len(list) == 0 {
		return r.runAll(f.none, s.inner())
	}
	l := &loop{items: list, depth: depth}
	if f.recursive {
		l.again = func(r *render, a arguments) (value, error) {
			return r.capture(func() error { return f.overItems(r, s, a.at(0, "", undefined{}), depth+1) })
		}
	}
	for i, item := range list {
		if err := r.step(); err != nil {
			return err
		}
		l.at = i
		inner := s.inner()
		inner.names["loop"] = l
		if err := assignTo(inner, f.targets, item); err != nil {
			return err
		}
		switch err := r.runAll(f.body, inner); err {
		case nil, errContinue:
		case errBreak:
			return nil
		default:
			return err
		}
	}
	return nil
}

// assignTo sets one name, or several from the members of a list.
func assignTo(s *scope, names []string, v value) error {
	if len(names) == 1 {
		s.names[names[0]] = v
		return nil
	}
	parts, err := items(v)
	if err != nil {
		return err
	}
	if len(parts) != len(names) {
		return fmt.Errorf("%d values for the %d names %s", len(parts), len(names), strings.Join(names, ", "))
	}
	for i, name := range names {
		s.names[name] = parts[i]
	}
	return nil
}

func (a *assign) run(r *render, s *scope) error {
	v, err := a.value.eval(r, s)
	if err != nil {
		return err
	}
	parts := []value{v}
	if len(a.targets) > 1 {
		if parts, err = items(v); err != nil {
			return err
		}
		if len(parts) != len(a.targets) {
			return fmt.Errorf("%d values for %d names", len(parts), len(a.targets))
		}
	}
	for i, t := range a.targets {
		if t.member == "" {
			s.names[t.name] = parts[i]
			continue
		}
		n, ok := s.get(t.name).(*namespace)
		if !ok {
			return fmt.Errorf("cannot assign to %s.%s: only namespaces can be changed", t.name, t.member)
		}
		n.members[t.member] = parts[i]
	}
	return nil
}

func (m *macro) run(_ *render, s *scope) error {
	s.names[m.name] = m.function(s)
	return nil
}

// function returns the macro as it is called where s is in sight.
func (m *macro) function(s *scope) function {
	return func(r *render, a arguments) (value, error) {
		if r.calls++; r.calls > maxCalls {
			return nil, fmt.Errorf("more than %d macros and recursive loops in each other", maxCalls)
		}
		defer func() { r.calls-- }()
		if len(a.positional) > len(m.parameters) {
			return nil, fmt.Errorf("the macro %s takes %d arguments, not %d", m.name, len(m.parameters), len(a.positional))
		}
		inner := s.inner()
		for i, parameter := range m.parameters {
			v := a.at(i, parameter, nil)
			_, named := a.named[parameter]
			if i >= len(a.positional) && !named {
				v = undefined{parameter}
				if d := i - len(m.parameters) + len(m.defaults); d >= 0 {
					var err error
					if v, err = m.defaults[d].eval(r, inner); err != nil {
						return nil, err
					}
				}
			}
			inner.names[parameter] = v
		}
		for name, v := range a.named {
			if name == "caller" && !slices.Contains(m.parameters, name) {
				inner.names["caller"] = v
			} else if !slices.Contains(m.parameters, name) {
				return nil, fmt.Errorf("the macro %s has no parameter %q", m.name, name)
			}
		}
		return r.capture(func() error { return r.runAll(m.body, inner) })
	}
}

func (c *callBlock) run(r *render, s *scope) error {
	of, a, err := c.call.prepare(r, s)
	if err != nil {
		return err
	}
	a.named["caller"] = c.macro.function(s)
	v, err := of(r, a)
	if err != nil {
		return err
	}
	return textOut{text(v)}.run(r, s)
}

func (c *captured) eval(r *render, s *scope) (value, error) {
	return r.capture(func() error { return r.runAll(c.body, s.inner()) })
}

func (f *filterBlock) run(r *render, s *scope) error {
	return output{f.apply(&captured{f.body})}.run(r, s)
}

func (w *with) run(r *render, s *scope) error {
	inner := s.inner()
	for i, name := range w.names {
		v, err := w.values[i].eval(r, s)
		if err != nil {
			return err
		}
		inner.names[name] = v
	}
	return r.runAll(w.body, inner)
}
