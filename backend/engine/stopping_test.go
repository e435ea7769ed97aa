package engine

import (
	"math/rand/v2"
	"strings"
	"testing"
)

func TestStopStringsStraddleTokens(t *testing.T) {
	for _, c := range []struct {
		stops, tokens []string
		want          string
		stopped       bool
	}{
		{[]string{"END"}, []string{"an", "swer E", "N", "D and more"}, "answer ", true},
		{[]string{"END"}, []string{"the E", "NEND", "x"}, "the EN", true},
		{[]string{"END"}, []string{"it E", "N"}, "it EN", false},
		{[]string{"\n\n"}, []string{"a\n", "b\n", "\n"}, "a\nb", true},
		{[]string{"aab"}, []string{"a", "a", "a", "b"}, "a", true},
		{[]string{"</s>", "<|user|>"}, []string{"hi<", "|us", "er|>"}, "hi", true},
		{[]string{"bc", "abcd"}, []string{"ab", "cd"}, "a", true},
		{nil, []string{"a", "b"}, "ab", false},
		{[]string{"é!"}, []string{"caf", "é", "."}, "café.", false},
	} {
		m := stopMatcher{stops: c.stops}
		var got strings.Builder
		stopped := false
		for _, token := range c.tokens {
			shown, stop := m.push(token)
			got.WriteString(shown)
			if stop {
				stopped = true
				break
			}
		}
		if !stopped {
			got.WriteString(m.flush())
		}
		if got.String() != c.want || stopped != c.stopped {
			t.Errorf("stops %q, tokens %q: %q, stopped %v", c.stops, c.tokens, got.String(), stopped)
		}
	}
}

func TestOnlyAPossibleStopIsHeldBack(t *testing.T) {
	m := stopMatcher{stops: []string{"STOP", "\nQ:"}}
	for _, c := range [][2]string{{"hello", "hello"}, {" S", " "}, {"un", "Sun"}, {"\n", ""}, {"A", "\nA"}} {
		if shown, _ := m.push(c[0]); shown != c[1] {
			t.Fatalf("after %q, %q was shown instead of %q", c[0], shown, c[1])
		}
	}
}

// However a text is cut into tokens, it stops at the same place.
func TestStopsDoNotDependOnTheCut(t *testing.T) {
	const seed = 5
	random := rand.New(rand.NewPCG(seed, 0))
	for trial := range 2000 {
		letters := func(n int) string {
			b := make([]byte, n)
			for i := range b {
				b[i] = "ab"[random.IntN(2)]
			}
			return string(b)
		}
		text, stops := letters(1+random.IntN(20)), []string{letters(1 + random.IntN(4)), letters(1 + random.IntN(4))}
		want := text
		for end := range len(text) + 1 {
			for _, s := range stops {
				if strings.HasSuffix(text[:end], s) && len(want) > end-len(s) {
					want = text[:end-len(s)]
				}
			}
			if want != text {
				break
			}
		}
		m := stopMatcher{stops: stops}
		var got strings.Builder
		stopped := false
		for rest := text; rest != "" && !stopped; {
			n := 1 + random.IntN(len(rest))
			var shown string
			shown, stopped = m.push(rest[:n])
			got.WriteString(shown)
			rest = rest[n:]
		}
		if !stopped {
			got.WriteString(m.flush())
		}
		if got.String() != want {
			t.Fatalf("seed %d trial %d: %q with stops %q gives %q, not %q", seed, trial, text, stops, got.String(), want)
		}
	}
}

func TestLoopsAreNoticedOnce(t *testing.T) {
	feed := func(next func(i int) int32, n int) (periods []int, at int) {
		var d loopDetector
		var ids []int32
		for i := range n {
			ids = append(ids, next(i))
			if p, found := d.push(ids); found {
				periods, at = append(periods, p), i
			}
		}
		return periods, at
	}
	if periods, at := feed(func(i int) int32 { return int32(i % 4) }, 500); len(periods) != 1 || periods[0] != 4 || at != 79 {
		t.Errorf("a 4-gram: periods %v at %d", periods, at)
	}
	if periods, at := feed(func(int) int32 { return 7 }, 500); len(periods) != 1 || periods[0] != 1 || at != 79 {
		t.Errorf("one token: periods %v at %d", periods, at)
	}
	if periods, _ := feed(func(i int) int32 { return int32(i % 16) }, 400); len(periods) != 1 || periods[0] != 16 {
		t.Errorf("a 16-gram: periods %v", periods)
	}
	if periods, _ := feed(func(i int) int32 { return int32(i * i % 101) }, 500); len(periods) != 0 {
		t.Errorf("no loop, but periods %v", periods)
	}
	if periods, _ := feed(func(i int) int32 { return int32(i % 4) }, 79); len(periods) != 0 {
		t.Errorf("79 tokens are not 20 repeats: %v", periods)
	}
}
