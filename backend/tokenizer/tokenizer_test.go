package tokenizer

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/dlclark/regexp2"
	"golang.org/x/text/encoding/unicode"
)

// seed is printed by every test that draws from it.
const seed = 20260730

func bundledTokenizer(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Load(filepath.Join("..", "bundled", "model", "tokenizer.json"))
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func encode(t testing.TB, tok *Tokenizer, segments ...Segment) []int32 {
	t.Helper()
	ids, err := tok.EncodeSegments(segments)
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// small is a tokenizer.json with the 256 bytes as tokens 0 to 255, then one token per merge, then what the caller adds.
type small struct {
	merges       [][2]string
	added        []addedToken
	pattern      string
	normalizer   string
	ignoreMerges bool
	words        []string // tokens that no merge makes
	prefixSpace  bool
}

// written returns text in the characters that vocabulary files use for bytes.
func written(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		b.WriteRune(rune(slices.Index(byteOf[:], int16(c))))
	}
	return b.String()
}

func (s small) json() []byte {
	vocabulary := map[string]int{}
	for b := range 256 {
		vocabulary[written(string([]byte{byte(b)}))] = b
	}
	merges := []string{}
	for _, m := range s.merges {
		vocabulary[written(m[0]+m[1])] = len(vocabulary)
		merges = append(merges, written(m[0])+" "+written(m[1]))
	}
	for _, w := range s.words {
		vocabulary[written(w)] = len(vocabulary)
	}
	steps := []any{}
	if s.pattern != "" {
		steps = append(steps, map[string]any{"type": "Split", "pattern": map[string]any{"Regex": s.pattern}, "behavior": "Isolated"})
	}
	steps = append(steps, map[string]any{"type": "ByteLevel", "add_prefix_space": s.prefixSpace, "use_regex": false})
	file := map[string]any{
		"added_tokens":  s.added,
		"pre_tokenizer": map[string]any{"type": "Sequence", "pretokenizers": steps},
		"model":         map[string]any{"type": "BPE", "vocab": vocabulary, "merges": merges, "ignore_merges": s.ignoreMerges},
		"decoder":       map[string]any{"type": "ByteLevel"},
	}
	if s.normalizer != "" {
		file["normalizer"] = map[string]any{"type": s.normalizer}
	}
	data, err := json.Marshal(file)
	if err != nil {
		panic(err)
	}
	return data
}

func (s small) load(t testing.TB) *Tokenizer {
	t.Helper()
	tok, err := Parse(s.json())
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

func TestRandomTextsGiveHuggingFacesIDs(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "random.json"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Vectors []map[string]json.RawMessage
	}
	if err := json.Unmarshal(data, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Vectors) != 200 {
		t.Fatalf("%d vectors", len(file.Vectors))
	}
	for _, name := range realNames {
		tok := realTokenizer(t, name)
		for _, v := range file.Vectors {
			var text string
			var want []int32
			if err := json.Unmarshal(v["text"], &text); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(v[name], &want); err != nil {
				t.Fatal(err)
			}
			if got := encode(t, tok, Segment{text, true}); !slices.Equal(got, want) {
				t.Errorf("%s: %+q gives %v, expected %v", name, text, got, want)
			}
		}
	}
}

func TestBundledTokenizerGivesTheIDsItsModelWasTrainedOn(t *testing.T) {
	tok := bundledTokenizer(t)
	got := encode(t, tok, Segment{"[gMASK]<sop><|user|>\n", true}, Segment{"Tell me a short story about a cat.", false}, Segment{"<|assistant|>\n<think></think>\n", true})
	want := []int32{2, 4, 7, 216, 888, 371, 276, 913, 533, 438, 276, 1010, 31, 8, 216, 10, 11, 216}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, expected %v", got, want)
	}
	if tok.Size() != 8192 {
		t.Errorf("size %d", tok.Size())
	}
}

func TestPlainTextNeverBecomesAControlToken(t *testing.T) {
	tokenizers := map[string]*Tokenizer{"bundled": bundledTokenizer(t)}
	for _, name := range realNames {
		tokenizers[name] = realTokenizer(t, name)
	}
	for name, tok := range tokenizers {
		for _, a := range tok.added {
			for _, text := range []string{a.Content, "hi" + a.Content + "\n" + a.Content + "system", " " + a.Content + " "} {
				ids := encode(t, tok, Segment{"<|", true}, Segment{text, false}, Segment{"|>", true})
				for _, id := range ids {
					if tok.IsSpecial(id) {
						t.Errorf("%s: plain %q became the control token %d", name, text, id)
					}
				}
				if got := tok.Decode(ids); got != "<|"+text+"|>" {
					t.Errorf("%s: %q comes back as %q", name, "<|"+text+"|>", got)
				}
			}
			if ids := encode(t, tok, Segment{a.Content, true}); !slices.Equal(ids, []int32{a.ID}) {
				t.Errorf("%s: special %q gives %v, expected its id %d", name, a.Content, ids, a.ID)
			}
			if id, ok := tok.TokenID(a.Content); !ok || id != a.ID {
				t.Errorf("%s: TokenID(%q) = %d, %t", name, a.Content, id, ok)
			}
		}
	}
}

func TestAControlTokenIsNotAssembledAcrossSegments(t *testing.T) {
	tok := bundledTokenizer(t)
	for _, segments := range [][]Segment{
		{{"<|us", true}, {"er|>", false}},
		{{"<|us", false}, {"er|>", true}},
		{{"<|us", true}, {"er|>", true}},
		{{"<|", true}, {"user", false}, {"|>", true}},
	} {
		for _, id := range encode(t, tok, segments...) {
			if tok.IsSpecial(id) {
				t.Errorf("%v gives the control token %d", segments, id)
			}
		}
	}
}

func TestSegmentsOfOrdinaryTextAreSplitAsOneText(t *testing.T) {
	tok := bundledTokenizer(t)
	whole := encode(t, tok, Segment{"Answer this: what is a hummingbird?\n", false})
	parts := encode(t, tok, Segment{"Answer th", true}, Segment{"is: what is a humming", false}, Segment{"bird?", false}, Segment{"\n", true})
	if !slices.Equal(whole, parts) {
		t.Errorf("in one piece %v, in four %v", whole, parts)
	}
}

func TestIgnoreMergesTakesWholeWordsButNoControlTokens(t *testing.T) {
	tok := small{
		words: []string{"zebra", "<x>"}, ignoreMerges: true,
		added: []addedToken{{ID: 257, Content: "<x>", Special: true}},
	}.load(t)
	if got := encode(t, tok, Segment{"zebra", false}); !slices.Equal(got, []int32{256}) {
		t.Errorf("zebra: %v", got)
	}
	if got := encode(t, tok, Segment{"<x>", false}); !slices.Equal(got, []int32{'<', 'x', '>'}) {
		t.Errorf("<x>: %v", got)
	}
}

// OLMoE's vocabulary has runs of spaces as added tokens; they are text, and training saw them as such.
func TestAddedWhiteSpaceIsFoundInPlainText(t *testing.T) {
	tok := small{added: []addedToken{{ID: 256, Content: "    ", Normalized: true}, {ID: 257, Content: "  ", Normalized: true}, {ID: 258, Content: "<pad>"}}}.load(t)
	if got := encode(t, tok, Segment{"a       b<pad>", false}); !slices.Equal(got, []int32{'a', 256, 257, ' ', 'b', '<', 'p', 'a', 'd', '>'}) {
		t.Errorf("got %v", got)
	}
	if tok.IsSpecial(256) || !tok.IsSpecial(258) {
		t.Error("white space is a control token, or <pad> is none")
	}
}

func TestOptionsOfAddedTokens(t *testing.T) {
	tok := small{added: []addedToken{
		{ID: 256, Content: "<l>", LStrip: true, Special: true},
		{ID: 257, Content: "<r>", RStrip: true, Special: true},
		{ID: 258, Content: "cat", SingleWord: true, Special: true},
		{ID: 259, Content: "<|a|>", Special: true},
		{ID: 260, Content: "<|a|><|b|>", Special: true},
	}}.load(t)
	for text, want := range map[string][]int32{
		"x \n<l> y":           {'x', 256, ' ', 'y'},
		"x <r> \u2003y":       {'x', ' ', 257, 'y'},
		"cats cat":            {'c', 'a', 't', 's', ' ', 258},
		"<|a|><|b|><|a|><|b>": {260, 259, '<', '|', 'b', '>'},
	} {
		if got := encode(t, tok, Segment{text, true}); !slices.Equal(got, want) {
			t.Errorf("%q: %v, expected %v", text, got, want)
		}
	}
}

func TestNormalizedAddedTokensAreFoundInComposedText(t *testing.T) {
	tok := small{normalizer: "NFC", added: []addedToken{{ID: 256, Content: "<é>", Normalized: true}, {ID: 257, Content: "<ö>", Special: true}}}.load(t)
	for text, want := range map[string][]int32{
		"a<e\u0301>b": {'a', 256, 'b'},
		"a<é>b":       {'a', 256, 'b'},
		"a<ö>b":       {'a', 257, 'b'},
		"<o\u0308>":   {'<', 0xC3, 0xB6, '>'},
	} {
		if got := encode(t, tok, Segment{text, true}); !slices.Equal(got, want) {
			t.Errorf("%+q: %v, expected %v", text, got, want)
		}
	}
	if got := encode(t, tok, Segment{"a<e\u0301>", false}); slices.Contains(got, 256) {
		t.Errorf("plain text became the added token: %v", got)
	}
}

func TestAddPrefixSpace(t *testing.T) {
	tok := small{prefixSpace: true}.load(t)
	if got := encode(t, tok, Segment{"a", false}); !slices.Equal(got, []int32{' ', 'a'}) {
		t.Errorf("got %v", got)
	}
	if got := encode(t, tok, Segment{" a", false}); !slices.Equal(got, []int32{' ', 'a'}) {
		t.Errorf("got %v", got)
	}
}

func TestMergesMayBeStringsOrPairsAndComeFirst(t *testing.T) {
	base := string(small{merges: [][2]string{{"a", "b"}, {"ab", " "}}}.json())
	strings1 := `"merges":["a b","ab Ġ"]`
	if !strings.Contains(base, strings1) {
		t.Fatal("the file to be changed looks otherwise: " + base[len(base)-300:])
	}
	for name, file := range map[string]string{
		"strings": base,
		"pairs":   strings.Replace(base, strings1, `"merges":[["a","b"],["ab","Ġ"]]`, 1),
		"escaped": strings.Replace(base, strings1, `"merges":["\u0061 b",["a\u0062","\u0120"]]`, 1),
	} {
		tok, err := Parse([]byte(file))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := encode(t, tok, Segment{"xab ", false}); !slices.Equal(got, []int32{'x', 257}) {
			t.Errorf("%s: got %v", name, got)
		}
	}
	// encoding/json sorts keys, so merges come before vocab in the files above. The other order:
	var file struct {
		Pre   json.RawMessage `json:"pre_tokenizer"`
		Model struct{ Vocab, Merges json.RawMessage }
	}
	if err := json.Unmarshal([]byte(base), &file); err != nil {
		t.Fatal(err)
	}
	later := fmt.Sprintf(`{"pre_tokenizer":%s,"model":{"vocab":%s,"merges":%s}}`, file.Pre, file.Model.Vocab, file.Model.Merges)
	if tok, err := Parse([]byte(later)); err != nil {
		t.Error(err)
	} else if got := encode(t, tok, Segment{"ab ", false}); !slices.Equal(got, []int32{257}) {
		t.Errorf("vocabulary first: got %v", got)
	}
}

// naive merges as the definition of BPE says: of all pairs the one of lowest rank, leftmost, again and again.
func naive(tok *Tokenizer, word string) []int32 {
	var ids []int32
	for _, b := range []byte(word) {
		ids = append(ids, tok.byteIDs[b])
	}
	for {
		best, at := mergeSlot{}, -1
		for i := range len(ids) - 1 {
			for _, slot := range tok.merges.slots {
				if slot.key == pairKey(ids[i], ids[i+1]) && (at < 0 || slot.rank < best.rank) {
					best, at = slot, i
				}
			}
		}
		if at < 0 {
			return ids
		}
		ids = append(append(ids[:at:at], best.id), ids[at+2:]...)
	}
}

func TestMergingFollowsTheDefinition(t *testing.T) {
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	for round := range 200 {
		s := small{}
		tokens := []string{"a", "b", "c"}
		seen := map[string]bool{}
		for range 12 {
			left, right := tokens[random.IntN(len(tokens))], tokens[random.IntN(len(tokens))]
			if !seen[left+right] {
				seen[left+right] = true
				s.merges = append(s.merges, [2]string{left, right})
				tokens = append(tokens, left+right)
			}
		}
		tok := s.load(t)
		for range 5 {
			word := ""
			for range 1 + random.IntN(30) {
				word += string("abc"[random.IntN(3)])
			}
			if got, want := encode(t, tok, Segment{word, false}), naive(tok, word); !slices.Equal(got, want) {
				t.Fatalf("round %d, merges %v: %q gives %v, expected %v", round, s.merges, word, got, want)
			}
		}
	}
}

// A merge loop that is quadratic in the length of a word would run for hours here.
func TestLongRunsEnd(t *testing.T) {
	tok := bundledTokenizer(t)
	for _, unit := range []string{"a", " ", "\n", "1", "!", "é", "世", "\u0301", "ab", "\xff", " \n "} {
		text := strings.Repeat(unit, 1<<19/len(unit))
		ids := encode(t, tok, Segment{text, false})
		if got := tok.Decode(ids); got != validText(text) {
			t.Errorf("half a megabyte of %q does not come back", unit)
		}
	}
}

// randomText draws the characters and the sequences that splitting patterns treat differently.
func randomText(random *rand.Rand) string {
	fragments := []string{"'s", "'T", "'re", "'VE", "'ll", "'ſ", "ſ", "\r\n", "\n", "\r", "  ", "\t", " ", "\u3000", "\u0085", "\u200b", "\u0301", "/", "//", "!",
		"a", "B", "Hello", "WORLD", "CamelCase", "123", "1234567", "½", "٣", "一", "龥", "龦", "あ", "ー", "ǅ", "É", "e\u0301", "한", "😀", "\x00", "\x1c", "_", "ʰ", "ª", "\U000e0001"}
	var b strings.Builder
	for range 1 + random.IntN(20) {
		if random.IntN(8) == 0 {
			b.WriteRune(rune(random.IntN(0x3000)))
		} else {
			b.WriteString(fragments[random.IntN(len(fragments))])
		}
	}
	return validText(b.String())
}

func comparePatterns(t *testing.T, text string) {
	t.Helper()
	for pattern := range knownPatterns {
		compiled, err := regexp2.Compile(pattern, regexp2.None)
		if err != nil {
			t.Fatal(err)
		}
		known := step{match: knownPatterns[pattern]}
		regular := step{pattern: compiled}
		whole := []span{{0, len(text)}}
		got, _ := known.split(text, whole, nil)
		want, err := regular.split(text, whole, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q splits %+q into %v, expected %v", pattern, text, got, want)
		}
	}
}

func TestKnownPatternsSplitAsTheirRegularExpressionsDo(t *testing.T) {
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 2))
	for range 1500 {
		comparePatterns(t, randomText(random))
	}
}

func FuzzKnownPatterns(f *testing.F) {
	f.Add("Hello 'S 123\n\n x")
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) < 200 && text != "" {
			comparePatterns(t, validText(text))
		}
	})
}

// Every published tokenizer's pattern is to take the fast path; a change of a constant would go unnoticed otherwise.
func TestRealTokenizersUseNoRegularExpression(t *testing.T) {
	for _, name := range realNames {
		for _, s := range realTokenizer(t, name).steps {
			if s.match == nil {
				t.Errorf("%s: %q", name, s.pattern)
			}
		}
	}
}

func TestUnknownPatternsWithLookAhead(t *testing.T) {
	tok := small{pattern: `\d{1,3}(?=(?:\d{3})*\b)|\s+(?!\S)|\S+`, merges: [][2]string{{"1", "2"}, {"2", "3"}}}.load(t)
	// 1 | 234 by the look-ahead, so that 1 and 2 are not neighbours
	if got := encode(t, tok, Segment{"1234", false}); !slices.Equal(got, []int32{'1', 257, '4'}) {
		t.Errorf("got %v", got)
	}
	if got := encode(t, tok, Segment{"é12", false}); !slices.Equal(got, []int32{0xC3, 0xA9, 256}) {
		t.Errorf("got %v", got)
	}
}

func TestAPatternThatTakesTooLongIsAnError(t *testing.T) {
	tok := small{pattern: `(a+)+$`}.load(t)
	tok.steps[0].pattern.MatchTimeout = 1 // nanosecond
	_, err := tok.Encode(strings.Repeat("a", 64) + "b")
	if err == nil || !strings.Contains(err.Error(), "(a+)+$") {
		t.Errorf("error %v", err)
	}
}

func TestInvalidTextIsEncodedAsReplacementCharacters(t *testing.T) {
	tok := small{}.load(t)
	if got := tok.Decode(encode(t, tok, Segment{"a\xffb\xe4\xb8", false})); got != "a\uFFFDb\uFFFD" {
		t.Errorf("got %q", got)
	}
}

func TestStreamShowsWholeCharactersAtOnce(t *testing.T) {
	tok := small{words: []string{"\x9f\x98\x80!", "é\xf0"}, added: []addedToken{{ID: 300, Content: "<end>", Special: true}}}.load(t)
	for _, c := range []struct {
		ids  []int32
		want []string
		tail string
	}{
		{[]int32{0xF0, 0x9F, 0x98, 0x80, 'a'}, []string{"", "", "", "😀", "a"}, ""},
		{[]int32{0xF0, 256, 'a'}, []string{"", "😀!", "a"}, ""},
		{[]int32{257, 256}, []string{"é", "😀!"}, ""},
		{[]int32{0xF0, 'a', 'b'}, []string{"", "\uFFFDa", "b"}, ""},       // a character that is not finished
		{[]int32{0xFF, 0x80, 'a'}, []string{"\uFFFD", "\uFFFD", "a"}, ""}, // bytes that start none show at once
		{[]int32{0xE0, 0x80, 'a'}, []string{"", "\uFFFD\uFFFD", "a"}, ""}, // E0 80 is too long a form
		{[]int32{0xE4, 0xB8, 300, 'a'}, []string{"", "", "\uFFFD<end>", "a"}, ""},
		{[]int32{'a', 0xE4, 0xB8}, []string{"a", "", ""}, "\uFFFD"},
		{[]int32{-1, 299, 1 << 30, 'a'}, []string{"", "", "", "a"}, ""}, // ids outside the vocabulary have no text
	} {
		stream := tok.NewStream()
		for i, id := range c.ids {
			if got := stream.Push(id); got != c.want[i] {
				t.Errorf("%v: step %d gives %q, expected %q", c.ids, i, got, c.want[i])
			}
		}
		if got := stream.Flush(); got != c.tail {
			t.Errorf("%v: tail %q, expected %q", c.ids, got, c.tail)
		}
	}
}

func TestStreamAgreesWithADecoderOfWholeTexts(t *testing.T) {
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 3))
	tok := small{}.load(t)
	interesting := []byte{0x00, 'a', 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0, 0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF}
	for range 20000 {
		data := make([]byte, 1+random.IntN(8))
		ids := make([]int32, len(data))
		for i := range data {
			data[i] = interesting[random.IntN(len(interesting))]
			ids[i] = int32(data[i])
		}
		want, err := unicode.UTF8.NewDecoder().Bytes(data)
		if err != nil {
			t.Fatal(err)
		}
		if got := tok.Decode(ids); got != string(want) {
			t.Fatalf("% X gives %q, expected %q", data, got, want)
		}
		if got := validText(string(data)); got != string(want) {
			t.Fatalf("validText of % X gives %q, expected %q", data, got, want)
		}
	}
}

func FuzzRoundTrip(f *testing.F) {
	tok := bundledTokenizer(f)
	f.Add("Hello <|user|> 世界 \xff")
	f.Fuzz(func(t *testing.T, text string) {
		ids := encode(t, tok, Segment{text, false})
		for _, id := range ids {
			if tok.IsSpecial(id) {
				t.Fatalf("%q gives the control token %d", text, id)
			}
		}
		if got := tok.Decode(ids); got != validText(text) {
			t.Fatalf("%q comes back as %q", text, got)
		}
	})
}

func ExampleTokenizer_NewStream() {
	tok, _ := Load("../bundled/model/tokenizer.json")
	ids, _ := tok.Encode("naïve 😀")
	stream := tok.NewStream()
	for _, id := range ids {
		fmt.Printf("%q ", stream.Push(id))
	}
	fmt.Printf("%q\n", stream.Flush())
	// Output: "na" "" "ï" "ve" " " "" "" "" "😀" ""
}
