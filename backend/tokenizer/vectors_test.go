package tokenizer

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// realNames are the tokenizers that scripts/fetch-tokenizers.sh fetches.
var realNames = []string{"qwen3", "deepseek_v3", "gptoss"}

var loaded struct {
	sync.Mutex
	byName map[string]*Tokenizer
}

// realTokenizer loads one of the fetched tokenizers, once for all tests.
func realTokenizer(t testing.TB, name string) *Tokenizer {
	t.Helper()
	loaded.Lock()
	defer loaded.Unlock()
	if tok, ok := loaded.byName[name]; ok {
		return tok
	}
	path := filepath.Join("..", "..", "build", "cache", "tokenizers", name+".json")
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("%v: run scripts/fetch-tokenizers.sh (make test does) to fetch the tokenizers that this test needs", err)
	}
	tok, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.byName == nil {
		loaded.byName = map[string]*Tokenizer{}
	}
	loaded.byName[name] = tok
	return tok
}

type vector struct {
	Text    string  `json:"text"`
	IDs     []int32 `json:"ids"`
	Decoded string  `json:"decoded"`
}

func readVectors(t *testing.T, path string) []vector {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var file struct{ Vectors []vector }
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) == 0 {
		t.Fatalf("%s has no vectors", path)
	}
	return file.Vectors
}

// The expected ids come from Hugging Face's tokenizers, which resolve added tokens in any text: what we call special.
func TestIDsAreThoseOfHuggingFace(t *testing.T) {
	for _, name := range realNames {
		tok := realTokenizer(t, name)
		for _, v := range readVectors(t, filepath.Join("..", "..", "testdata", "tokenizers", name+".vectors.json")) {
			ids, err := tok.EncodeSegments([]Segment{{v.Text, true}})
			if err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(ids, v.IDs) {
				t.Errorf("%s: %q gives %v, expected %v", name, v.Text, ids, v.IDs)
			}
			if decoded := tok.Decode(v.IDs); decoded != v.Decoded {
				t.Errorf("%s: %v decodes to %q, expected %q", name, v.IDs, decoded, v.Decoded)
			}
		}
	}
}
