package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// titles lists where hits are, with their snippets.
func titles(hits []Hit) (out []string) {
	for _, h := range hits {
		out = append(out, h.Conversation+"/"+h.Message+": "+strings.NewReplacer(MarkBegin, "[", MarkEnd, "]").Replace(h.Snippet))
	}
	return out
}

func TestSearch(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c1", "Birds of Ecuador", 1)))
	must(t, s.PutMessage(message("m1", "c1", "", "Tell me about\nthe **hummingbird**, please: the HUMMINGBIRD.")))
	must(t, s.PutMessage(message("m2", "c1", "m1", "Crème brûlée is no bird. 今天天气怎么样？ Straße. C++ and x86_64.")))
	must(t, s.PutConversation(conversation("c2", "Hummingbirds", 2)))
	must(t, s.PutMessage(message("m3", "c2", "", strings.Repeat("filler ", 60)+"the needle, and "+strings.Repeat("more ", 60))))
	for query, want := range map[string][]string{
		"hum":                    {"c2/: [Hum]mingbirds", "c1/m1: Tell me about the **[hum]mingbird**, please: the [HUM]MINGBIRD."},
		"hummingbird please":     {"c1/m1: Tell me about the **[hummingbird]**, [please]: the [HUMMINGBIRD]."},
		"please hummingbird":     {"c1/m1: Tell me about the **[hummingbird]**, [please]: the [HUMMINGBIRD]."},
		"humming bird":           {},
		"ECUADOR":                {"c1/: Birds of [Ecuador]"},
		"creme BRULEE":           {"c1/m2: [Crème] [brûlée] is no bird. 今天天气怎么样？ Straße. C++ and x86_64."},
		"crème":                  {"c1/m2: [Crème] brûlée is no bird. 今天天气怎么样？ Straße. C++ and x86_64."},
		"天气":                     {"c1/m2: Crème brûlée is no bird. 今天[天气]怎么样？ Straße. C++ and x86_64."},
		"气天":                     {},
		"x86_64":                 {"c1/m2: …brûlée is no bird. 今天天气怎么样？ Straße. C++ and [x86]_[64]."},
		"need":                   {"c2/m3: …filler filler filler filler filler filler the [need]le, and more more more more more more more more more more more more more more more more more more more more mo…"},
		"eedle":                  {},
		"nothing-like-this":      {},
		"":                       {},
		"   ":                    {},
		"***":                    {},
		"\"":                     {},
		"hum*":                   {"c2/: [Hum]mingbirds", "c1/m1: Tell me about the **[hum]mingbird**, please: the [HUM]MINGBIRD."},
		"please AND hummingbird": {},
		"title:ecuador":          {},
		"NEAR(needle)":           {},
		"(needle":                {"c2/m3: …filler filler filler filler filler filler the [needle], and more more more more more more more more more more more more more more more more more more more more mo…"},
		"needle\" OR \"birds":    {},
		"-needle":                {"c2/m3: …filler filler filler filler filler filler the [needle], and more more more more more more more more more more more more more more more more more more more more mo…"},
	} {
		hits, err := s.Search(query, 20)
		if err != nil {
			t.Errorf("%q: %v", query, err)
			continue
		}
		if got := titles(hits); !slices.Equal(got, want) {
			t.Errorf("%q finds %q, expected %q", query, got, want)
		}
	}
}

func TestChangedTextIsFoundByItsNewWordsOnly(t *testing.T) {
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c", "oldtitle", 1)))
	must(t, s.PutMessage(message("m", "c", "", "oldword")))
	must(t, s.PutConversation(conversation("c", "newtitle", 1)))
	must(t, s.PutMessage(message("m", "c", "", "newword")))
	for query, want := range map[string]int{"oldtitle": 0, "oldword": 0, "newtitle": 1, "newword": 1} {
		if hits, err := s.Search(query, 9); err != nil || len(hits) != want {
			t.Errorf("%s: %v, %v", query, hits, err)
		}
	}
}

func TestHitsAreLimitedAndOneConversationDoesNotFillTheList(t *testing.T) {
	s, _ := fresh(t)
	var conversations []Conversation
	var messages []Message
	for c := range 30 {
		id := fmt.Sprintf("c%d", c)
		conversations = append(conversations, conversation(id, "common", int64(c)))
		for m := range 10 {
			messages = append(messages, message(fmt.Sprintf("%s-m%d", id, m), id, "", "common text"))
		}
	}
	must(t, s.PutAll(conversations, messages))
	hits, err := s.Search("text", 20)
	must(t, err)
	per := map[string]int{}
	for _, h := range hits {
		per[h.Conversation]++
	}
	if len(hits) != 20 || len(per) != 7 || per["c29"] != 3 {
		t.Errorf("%d hits in %v", len(hits), per)
	}
	if hits, _ := s.Search("common", 20); len(hits) != 20 || hits[0].Conversation != "c29" || hits[0].Message != "" {
		t.Errorf("titles first, latest first: %v", titles(hits[:3]))
	}
}

func FuzzSearch(f *testing.F) {
	s, _ := fresh(f)
	must(f, s.PutConversation(conversation("c", "Title of 天气", 1)))
	must(f, s.PutMessage(message("m", "c", "", "the text, with “quotes” and 天气 and e\u0301")))
	for _, query := range []string{`"`, `a" OR "b`, "*", "^a", "col:x", "NEAR(a b)", "天", "a AND NOT b", "\x00", "\xff", "{a b}", "é", "e\u0301", "ß", "\u0e01\u0e34", "½", "²", "\U0001F600"} {
		f.Add(query)
	}
	f.Fuzz(func(t *testing.T, query string) {
		if _, err := s.Search(query, 5); err != nil {
			t.Fatalf("%q: %v", query, err)
		}
		snippet(query, terms(query))
	})
}

// What a snippet marks is what the index found: otherwise a hit would show no match.
func TestEverySnippetShowsItsMatch(t *testing.T) {
	const seed = 20260801
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	s, _ := fresh(t)
	must(t, s.PutConversation(conversation("c", "", 1)))
	words := []string{"alpha", "Beta", "GAMMA", "naïve", "e\u0301tude", "ÅNGSTRÖM", "x86", "42", "天气", "カタカナ", "Привет", "über-alles", "don't", "snake_case", "ﬁne", "½"}
	for i := range 200 {
		var text []string
		for range 1 + random.IntN(40) {
			text = append(text, words[random.IntN(len(words))])
		}
		must(t, s.PutMessage(message(fmt.Sprint(i), "c", "", strings.Join(text, []string{" ", ", ", "\n", "—"}[random.IntN(4)]))))
	}
	for _, query := range append(words, "alph", "etu", "angstr", "天", "Прив", "beta gamma") {
		hits, err := s.Search(query, 50)
		if err != nil {
			t.Fatal(err)
		}
		for _, h := range hits {
			if !strings.Contains(h.Snippet, MarkBegin) {
				t.Errorf("%q: nothing is marked in %q", query, h.Snippet)
			}
		}
		if len(hits) == 0 {
			t.Errorf("%q is not found", query)
		}
	}
}

func TestSearchUsesTheIndex(t *testing.T) {
	s, _ := fresh(t)
	rows, err := s.read.Query(`EXPLAIN QUERY PLAN SELECT m.text FROM message_words w CROSS JOIN messages m ON m.key = w.rowid CROSS JOIN conversations c ON c.id = m.conversation WHERE w.words MATCH 'x' ORDER BY w.rowid DESC`)
	must(t, err)
	defer rows.Close()
	var plan []string
	for rows.Next() {
		var a, b, c int
		var detail string
		must(t, rows.Scan(&a, &b, &c, &detail))
		plan = append(plan, detail)
	}
	text := strings.Join(plan, "; ")
	if strings.Contains(text, "SCAN m") || strings.Contains(text, "SCAN c") || strings.Contains(text, "TEMP B-TREE") || !strings.Contains(text, "VIRTUAL TABLE INDEX") {
		t.Errorf("the plan reads too much: %s", text)
	}
}

func BenchmarkSearch(b *testing.B) {
	s, _ := fresh(b)
	random := rand.New(rand.NewPCG(1, 1))
	vocabulary := make([]string, 5000)
	for i := range vocabulary {
		for range 3 + random.IntN(7) {
			vocabulary[i] += string(rune('a' + random.IntN(26)))
		}
	}
	for c := range 2000 {
		var messages []Message
		id := fmt.Sprint("c", c)
		for m := range 6 {
			var text []string
			for range 250 {
				text = append(text, vocabulary[min(random.IntN(5000), random.IntN(5000))])
			}
			messages = append(messages, message(fmt.Sprint(id, "-", m), id, "", strings.Join(append(text, "common"), " ")))
		}
		must(b, s.PutAll([]Conversation{conversation(id, "Title "+fmt.Sprint(c), int64(c))}, messages))
	}
	for name, query := range map[string]string{"common": "common", "rare": vocabulary[4990], "prefix": "a", "two": vocabulary[10] + " " + vocabulary[20], "none": "qqqqqqqq", "commonAndRare": "common " + vocabulary[4980]} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := s.Search(query, 50); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
