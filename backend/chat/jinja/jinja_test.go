package jinja

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ordered decodes JSON with the keys of objects in their order, which Python's dictionaries keep and Go's maps do not.
func ordered(t *testing.T, data []byte) any {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	var read func() any
	read = func() any {
		token, err := decoder.Token()
		if err != nil {
			t.Fatal(err)
		}
		switch token {
		case json.Delim('{'):
			dict := NewDict()
			for decoder.More() {
				key := read().(string)
				dict.Set(key, read())
			}
			_, _ = decoder.Token()
			return dict
		case json.Delim('['):
			list := []any{}
			for decoder.More() {
				list = append(list, read())
			}
			_, _ = decoder.Token()
			return list
		}
		if number, ok := token.(json.Number); ok {
			if i, err := number.Int64(); err == nil {
				return int(i)
			}
			f, _ := number.Float64()
			return f
		}
		return token
	}
	return read()
}

// The expectations were rendered by Python's Jinja2 as Hugging Face configures it.
func TestTemplatesRenderAsInPython(t *testing.T) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "testdata", "templates", "*.expected.json"))
	more, _ := filepath.Glob(filepath.Join("testdata", "*.expected.json"))
	if len(files) < 2 || len(more) < 2 {
		t.Fatalf("expectations are missing: %v %v", files, more)
	}
	for _, file := range append(files, more...) {
		name := strings.TrimSuffix(file, ".expected.json")
		source, err := os.ReadFile(name + ".jinja")
		if err != nil {
			t.Fatal(err)
		}
		template, err := Parse(string(source))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var cases []struct {
			Name     string
			Input    json.RawMessage
			Rendered *string
			Raises   string
		}
		if err := json.Unmarshal(data, &cases); err != nil {
			t.Fatal(err)
		}
		for _, c := range cases {
			input := map[string]any{}
			object := ordered(t, c.Input).(*Dict)
			for _, key := range object.keys {
				input[key.(string)] = object.values[key]
			}
			got, err := template.Render(input)
			switch {
			case c.Raises != "":
				if err == nil || !strings.Contains(err.Error(), c.Raises) {
					t.Errorf("%s, %s: error %v, expected %q", name, c.Name, err, c.Raises)
				}
			case err != nil:
				t.Errorf("%s, %s: %v", name, c.Name, err)
			case got != *c.Rendered:
				t.Errorf("%s, %s:\ngot      %q\nexpected %q", name, c.Name, got, *c.Rendered)
			}
		}
	}
}

func TestTemplatesAreConfined(t *testing.T) {
	for source, reason := range map[string]string{
		`{% include "/etc/passwd" %}`: "include is not for chat templates",
		`{% import "x" as x %}`:       "import is not for chat templates",
		`{% extends "x" %}`:           "extends is not for chat templates",
		`{% for`:                      "a tag without its %}",
		"a\n{% if x %}":               "line 2: expected endif before the end",
		"{% endif %}":                 `unknown statement "endif"`,
		"{% break %}":                 "break outside a loop",
		"{{ x | nosuch }}":            `there is no filter "nosuch"`,
		"{{ x is nosuch }}":           `there is no test "nosuch"`,
		"{{ 'a }}":                    "a string without an end",
		"{# a":                        "a comment without an end",
		"{% raw %}":                   "raw without endraw",
		"{{ 99999999999999999999 }}":  "too large",
		"{{ a b }}":                   `expected }}, found "b"`,
		"{{ }}":                       "expected a value",
		"{{ ":                         "a tag without its }}",
		`{{ ` + strings.Repeat("(", 100000) + `1` + strings.Repeat(")", 100000) + ` }}`: "in each other",
		`{{ ` + strings.Repeat("not ", 60000) + `1 }}`:                                  "in each other",
		strings.Repeat("{% if 1 %}", 20000):                                             "in each other",
		strings.Repeat("a", maxSourceBytes+1):                                           "more than",
	} {
		if _, err := Parse(source); err == nil || !strings.Contains(err.Error(), reason) || len(err.Error()) > 300 {
			t.Errorf("%.60q: error %v, expected one with %q", source, err, reason)
		}
	}
	for source, reason := range map[string]string{
		`{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}`:                                                            "in each other",
		`{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}`:                                                    "in each other",
		`{% for i in range(1000000000) %}x{% endfor %}`:                                                              "steps",
		`{% for i in range(10000) %}{% for j in range(10000) %}{% endfor %}{% endfor %}`:                             "steps",
		`{{ 'a' * 100000000000 }}`:                                                                                   "MB of text",
		`{{ [1] * 100000000000 }}`:                                                                                   "repeated too often",
		`{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}`:               "MB of text",
		`{% set n = namespace(s=[1]) %}{% for i in range(60) %}{% set n.s = n.s + n.s %}{% endfor %}`:                "steps",
		`{% set n = namespace(s='ab') %}{% for i in range(60) %}{% set n.s = n.s.replace('a', n.s) %}{% endfor %}`:   "MB of text",
		`{% set n = namespace(s=[]) %}{% for i in range(1000) %}{% set n.s = [n.s] %}{% endfor %}{{ n.s | tojson }}`: "in each other",
		"\n\n{% if true %}\n{{ raise_exception('roles must alternate') }}{% endif %}":                                "roles must alternate",
		"\n{{ nothing.at.all }}":              `line 2: "nothing" is undefined`,
		"{{ 'a' + 1 }}":                       "+ is not defined for a string and a integer",
		"{{ nothing + 1 }}":                   `"nothing" is undefined`,
		"{{ 1 // 0 }}":                        "division by zero",
		"{{ 1 < 'a' }}":                       "cannot be compared",
		"{% set x.y = 1 %}":                   "only namespaces can be changed",
		"{{ [].append(1) }}":                  "append would change a value",
		"{% for a, b in [1] %}{% endfor %}":   "cannot be looped over",
		"{% for a, b in ['x'] %}{% endfor %}": "1 values for the 2 names",
		"{{ 5() }}":                           "a integer cannot be called",
		"{{ {[]: 1} }}":                       "cannot be a key",
	} {
		template, err := Parse(source)
		if err != nil {
			t.Errorf("%q: %v", source, err)
			continue
		}
		out, err := template.Render(map[string]any{"x": 1})
		if err == nil || !strings.Contains(err.Error(), reason) || len(err.Error()) > 300 {
			t.Errorf("%q gives %.50q and the error %v, expected one with %q", source, out, err, reason)
		}
	}
}

func TestStrftimeNow(t *testing.T) {
	defer func() { now = time.Now }()
	now = func() time.Time { return time.Date(2026, 3, 9, 14, 5, 6, 0, time.UTC) }
	template, err := Parse(`{{ strftime_now("%d %B %Y, %H:%M %%") }}`)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := template.Render(nil); err != nil || got != "09 March 2026, 14:05 %" {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestWhatIsRaisedCanBeTold(t *testing.T) {
	template, err := Parse(`{{ raise_exception('no system role') }}`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = template.Render(nil)
	var raised *RaisedError
	if !errors.As(err, &raised) || raised.Message != "no system role" {
		t.Errorf("error %v", err)
	}
}

func FuzzTemplate(f *testing.F) {
	for _, file := range []string{"features", "qwen3", "deepseek_v3"} {
		source, err := os.ReadFile(filepath.Join("testdata", file+".jinja"))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(source))
	}
	f.Add(`{% raw -%} {{ {% endraw -%}{% for a, b in {'x': 1}.items() if b %}{{ loop.cycle(1, 2) }}{% else %}{% endfor %}{% call(x) m() %}{{ x[1:2] }}{% endcall %}`)
	f.Fuzz(func(t *testing.T, source string) {
		template, err := Parse(source)
		if err != nil {
			return
		}
		message := NewDict()
		message.Set("role", "user")
		message.Set("content", " a</think>b ")
		_, _ = template.Render(map[string]any{"messages": []any{message, message}, "add_generation_prompt": true})
	})
}

// Each snippet is one feature; Python's Jinja2 says what it gives, or that it fails.
func TestSnippetsDoAsInPython(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "snippets.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Variables json.RawMessage
		Snippets  []struct{ Source, Rendered, Fails string }
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Snippets) < 80 {
		t.Fatalf("%d snippets", len(file.Snippets))
	}
	object := ordered(t, file.Variables).(*Dict)
	for _, s := range file.Snippets {
		template, err := Parse(s.Source)
		var got string
		if err == nil {
			got, err = template.Render(map[string]any{"s": object.values["s"], "messages": object.values["messages"]})
		}
		switch {
		case s.Fails != "" && err == nil:
			t.Errorf("%q gives %q, expected an error", s.Source, got)
		case s.Fails == "" && err != nil:
			t.Errorf("%q: %v", s.Source, err)
		case s.Fails == "" && got != s.Rendered:
			t.Errorf("%q:\n got      %q\n expected %q", s.Source, got, s.Rendered)
		}
	}
}
