package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// toJSON writes as json.dumps(x, ensure_ascii=False) does, which is what models were trained on.
func toJSON(r *render, v value, a arguments) (value, error) {
	indent := -1
	if n, ok := integer(a.at(1, "indent", nil)); ok {
		indent = max(0, min(n, 16))
	}
	w := jsonWriter{r: r, indent: indent, ascii: truth(a.at(0, "ensure_ascii", false)), sorted: truth(a.at(3, "sort_keys", false)), comma: ", ", colon: ": "}
	if indent >= 0 {
		w.comma = ","
	}
	if separators, ok := a.at(2, "separators", nil).(*List); ok && len(separators.Items) == 2 {
		w.comma, w.colon = text(separators.Items[0]), text(separators.Items[1])
	}
	err := w.write(v, 0)
	return w.String(), err
}

type jsonWriter struct {
	strings.Builder
	r             *render
	indent        int // −1: all in one line
	ascii, sorted bool
	comma, colon  string
}

func (w *jsonWriter) newline(depth int) {
	if w.indent >= 0 {
		w.WriteString("\n" + strings.Repeat(" ", w.indent*depth))
	}
}

func (w *jsonWriter) write(v value, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("more than %d values in each other", maxDepth)
	}
	if err := w.r.step(); err != nil {
		return err
	}
	list := func(brackets string, n int, item func(i int) error) error {
		w.WriteByte(brackets[0])
		for i := range n {
			if i > 0 {
				w.WriteString(w.comma)
			}
			w.newline(depth + 1)
			if err := item(i); err != nil {
				return err
			}
		}
		if n > 0 {
			w.newline(depth)
		}
		w.WriteByte(brackets[1])
		return nil
	}
	switch v := v.(type) {
	case nil:
		w.WriteString("null")
	case bool, int:
		fmt.Fprint(w, v)
	case float64:
		w.WriteString(floatText(v))
	case string:
		return w.string(v)
	case *List:
		return list("[]", len(v.Items), func(i int) error { return w.write(v.Items[i], depth+1) })
	case *Dict:
		keys := v.keys
		if w.sorted {
			keys = slices.Clone(keys)
			slices.SortFunc(keys, func(a, b any) int { return strings.Compare(text(a), text(b)) })
		}
		return list("{}", len(keys), func(i int) error {
			if err := w.string(text(keys[i])); err != nil {
				return err
			}
			w.WriteString(w.colon)
			return w.write(v.values[keys[i]], depth+1)
		})
	default:
		return fmt.Errorf("a %s has no JSON form", kindOf(v))
	}
	return nil
}

func (w *jsonWriter) string(s string) error {
	if err := w.r.spend(len(s)); err != nil {
		return err
	}
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(s); err != nil {
		return err
	}
	// encoding/json escapes these two, Python does not.
	out := strings.NewReplacer(`\u2028`, "\u2028", `\u2029`, "\u2029").Replace(strings.TrimSuffix(b.String(), "\n"))
	if !w.ascii {
		w.WriteString(out)
		return nil
	}
	for _, r := range out {
		switch {
		case r < 0x80:
			w.WriteRune(r)
		case r > 0xFFFF:
			fmt.Fprintf(w, `\u%04x\u%04x`, 0xD800+(r-0x10000)>>10, 0xDC00+(r-0x10000)&0x3FF)
		default:
			fmt.Fprintf(w, `\u%04x`, r)
		}
	}
	return nil
}
