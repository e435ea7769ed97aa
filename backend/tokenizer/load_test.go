package tokenizer

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// replaced returns the smallest useful file with one part exchanged.
func replaced(t *testing.T, old, new string) string {
	t.Helper()
	file := string(small{merges: [][2]string{{"a", "b"}}, pattern: `\s+`, added: []addedToken{{ID: 257, Content: "<x>", Special: true}}}.json())
	if !strings.Contains(file, old) {
		t.Fatalf("the file does not contain %s", old)
	}
	return strings.Replace(file, old, new, 1)
}

func TestUnusableFilesAreRefusedWithTheReason(t *testing.T) {
	deep := strings.Repeat("[", 100000)
	for _, c := range []struct{ file, reason string }{
		{"", "expected '{'"},
		{"null", "expected '{'"},
		{"{}", "no model"},
		{"{} x", "something follows the end"},
		{`{"model":{}}`, "no vocabulary"},
		{`{"version":` + deep + `}`, "more than 64 values nested"},
		{`{"version":"` + "\xff" + `"}`, "not UTF-8"},
		{`{"version":"a`, "a string without an end"},
		{`{"version":"\q"}`, `unknown escape \q`},
		{`{"version":"\u12"}`, "four hexadecimal digits"},
		{`{"version":,}`, "expected a value"},
		{replaced(t, `"BPE"`, `"Unigram"`), `its model is a "Unigram"`},
		{replaced(t, `"type":"BPE"`, `"type":"BPE","byte_fallback":true`), "byte_fallback"},
		{replaced(t, `"type":"BPE"`, `"type":"BPE","dropout":0.1`), "dropout of 0.1"},
		{replaced(t, `"type":"BPE"`, `"type":"BPE","end_of_word_suffix":"</w>"`), "end_of_word_suffix"},
		{replaced(t, `"type":"BPE"`, `"type":"BPE","vocab":{"a":0}`), "two vocabularies"},
		{replaced(t, `"model"`, `"model":{},"model"`), "two models"},
		{replaced(t, `"a":97`, `"a":98`), "gives id 98 to both"},
		{replaced(t, `"a":97`, `"a":-1`), "expected a token id"},
		{replaced(t, `"a":97`, `"a":1e9`), "expected ','"},
		{replaced(t, `"a":97`, `"a":1048576`), "expected a token id from 0 to 1048575"},
		{replaced(t, `"a":97`, `"":97`), "an empty token"},
		{replaced(t, `"a":97,`, ``), "merge 0 joins"},
		{replaced(t, `"a b"`, `"ab"`), "merge 0 joins"},
		{replaced(t, `"a b"`, `"a c"`), "merge 0 joins"},
		{replaced(t, `"a b"`, `["a"]`), "expected ','"},
		{replaced(t, `"a b"`, `["a","b","c"]`), "expected ']'"},
		{replaced(t, `"a b"`, `7`), "expected '\"'"},
		{replaced(t, `"ab":256`, `"ab":256,"<x>":300`), "the vocabulary gives it 300"},
		{replaced(t, `"id":257`, `"id":256`), `has the id 256 of the token "ab"`},
		{replaced(t, `"id":257`, `"id":-5`), "outside 0 to"},
		{replaced(t, `"id":257`, `"id":99999999`), "outside 0 to"},
		{replaced(t, `"content":"\u003cx\u003e"`, `"content":""`), "has no text"},
		{replaced(t, `"id":257,"content":"\u003cx\u003e"`, `"id":256,"content":"ab"`), "plain text could become it"},
		{replaced(t, `"id":257,"content":"\u003cx\u003e"`, `"id":97,"content":"a"`), "the byte 0x61 is also the added token"},
		{replaced(t, `"id":257`, `"id":"257"`), "added_tokens"},
		{replaced(t, `"ByteLevel"`, `"WordPiece"`), `its decoder is a "WordPiece"`},
		{replaced(t, `"use_regex":false`, `"use_regex":0`), "pre_tokenizer is malformed"},
		{replaced(t, `{"add_prefix_space":false,"type":"ByteLevel","use_regex":false}`, `{"type":"Metaspace"}`), `its pre-tokenizer is a "Metaspace"`},
		{replaced(t, `,{"add_prefix_space":false,"type":"ByteLevel","use_regex":false}`, ``), "no ByteLevel pre-tokenizer"},
		{replaced(t, `"use_regex":false}`, `"use_regex":false},{"type":"ByteLevel"}`), "must be the last"},
		{replaced(t, `"Isolated"`, `"Removed"`), `behavior "Removed"`},
		{replaced(t, `\\s+`, `(`), `the splitting pattern "("`},
		{replaced(t, `\\s+`, `[a-z&&[aeiou]]`), "an intersection of sets"},
		{replaced(t, `\\s+`, `[^(\\s|[.,])]`), "a set within a set"},
		{replaced(t, `\\s+`, ``), "has no pattern"},
		{replaced(t, `"model"`, `"normalizer":{"type":"Lowercase"},"model"`), `its normalizer is a "Lowercase"`},
		{replaced(t, `"é"`, `"ééé"`), "no token for the byte 0xE9"},
	} {
		_, err := Parse([]byte(c.file))
		if err == nil || !strings.Contains(err.Error(), c.reason) {
			t.Errorf("%.80q…: error %v, expected one with %q", c.file, err, c.reason)
		}
	}
}

func TestASplitThatRemovesGapsOrTakesAString(t *testing.T) {
	tok, err := Parse([]byte(replaced(t, `"behavior":"Isolated","pattern":{"Regex":"\\s+"}`, `"behavior":"Removed","invert":true,"pattern":{"String":"a."}`)))
	if err != nil {
		t.Fatal(err)
	}
	if got := encode(t, tok, Segment{"xa.yab", false}); !slices.Equal(got, []int32{'a', '.'}) {
		t.Errorf("got %v", got)
	}
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "tokenizer.json")
	if err := os.WriteFile(bad, []byte("version https://git-lfs.github.com/spec/v1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{bad, dir, filepath.Join(dir, "missing.json")} {
		if _, err := Load(path); err == nil || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: error %v", path, err)
		}
	}
}

// Run it with -fuzzminimizetime 5x: the inputs are kilobytes, and Go spends the default minute on making each smaller.
func FuzzParse(f *testing.F) {
	f.Add(small{}.json(), "hello world")
	f.Add(small{merges: [][2]string{{"a", "b"}, {"ab", "c"}}, pattern: patternQwen, normalizer: "NFC", ignoreMerges: true, words: []string{"x y"},
		added: []addedToken{{ID: 300, Content: "<x>", LStrip: true, RStrip: true, Normalized: true}, {ID: 301, Content: "<y>", SingleWord: true, Special: true}}}.json(), "abc <x> é")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := Parse(file)
		if err != nil || len(text) > 1000 {
			return
		}
		ids, err := tok.EncodeSegments([]Segment{{text, false}, {text, true}})
		if err == nil {
			tok.Decode(ids)
		}
		for id := range tok.Size() {
			tok.IsSpecial(int32(id))
		}
	})
}

// The scanner accepts what encoding/json accepts, and reads the same from it, but for what it leaves to encoding/json.
func FuzzScanner(f *testing.F) {
	for _, s := range []string{`{"a":1,"b":"\u00e9\ud83d\ude00\ud83dx\n"}`, `{}`, `{"a":0,}`, `{"a":01}`, `{"a" : 5 , "é":"x"}`, `{"a":"` + "\x01" + `"}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s := scanner{data: data}
		got := map[string]any{}
		s.object(func(key string) {
			if s.peek() == '"' {
				got[key] = string(s.string())
			} else {
				got[key] = s.id()
			}
		})
		if s.peek() != 0 || s.at < len(data) {
			s.fail("more")
		}
		var want map[string]any
		err := json.Unmarshal(data, &want)
		if s.err != nil {
			for _, v := range want {
				number, isNumber := v.(float64)
				_, isString := v.(string)
				if !isString && !(isNumber && number >= 0 && number <= maxID && !bytes.ContainsAny(data, ".eE-")) {
					return // a value that the scanner was not asked to read
				}
			}
			if err == nil && want != nil && bytes.Equal(data, bytes.ToValidUTF8(data, nil)) {
				t.Fatalf("%q is refused: %v", data, s.err)
			}
			return
		}
		if err != nil {
			t.Fatalf("%q is accepted, but: %v", data, err)
		}
		for key, v := range got {
			if id, ok := v.(int32); ok {
				v = float64(id)
			}
			if want[key] != v {
				t.Fatalf("%q: %q is %v, expected %v", data, key, v, want[key])
			}
		}
	})
}
