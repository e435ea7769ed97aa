package engine

import "strings"

// stopMatcher finds stop strings in a stream of text. It holds back only what may still become one.
type stopMatcher struct {
	stops []string
	held  string
}

// push takes more text and gives what can be shown. Once stopped, text ends before the stop string that is complete first (the
// longest, of several at once), so that the cut into tokens makes no difference.
func (m *stopMatcher) push(text string) (shown string, stopped bool) {
	if len(m.stops) == 0 {
		return text, false
	}
	s := m.held + text
	cut, end := -1, 0
	for _, stop := range m.stops {
		if at := strings.Index(s, stop); at >= 0 && (cut < 0 || at+len(stop) < end || at+len(stop) == end && at < cut) {
			cut, end = at, at+len(stop)
		}
	}
	if cut >= 0 {
		m.held = ""
		return s[:cut], true
	}
	keep := 0
	for _, stop := range m.stops {
		for n := min(len(stop)-1, len(s)); n > keep; n-- {
			if strings.HasSuffix(s, stop[:n]) {
				keep = n
			}
		}
	}
	m.held = s[len(s)-keep:]
	return s[:len(s)-keep], false
}

// flush gives what was held back, when no more text follows.
func (m *stopMatcher) flush() string {
	s := m.held
	m.held = ""
	return s
}

// A model that repeats itself for this long rarely finds out of it again.
const (
	loopRepeats   = 20
	loopMinTokens = 4 * loopRepeats
	loopMaxPeriod = 16
)

// loopDetector notices that an answer repeats the same few tokens: loopRepeats times and for loopMinTokens tokens at least.
type loopDetector struct {
	runs     [loopMaxPeriod + 1]int // runs[p]: so many of the last tokens equal the token p before them
	reported bool
}

// push takes all tokens of the answer, one more than last time, and reports a loop once.
func (d *loopDetector) push(answer []int32) (period int, found bool) {
	last := len(answer) - 1
	for p := 1; p <= loopMaxPeriod && p <= last; p++ {
		if answer[last] != answer[last-p] {
			d.runs[p] = 0
			continue
		}
		d.runs[p]++
		if repeated := d.runs[p] + p; !found && repeated >= loopRepeats*p && repeated >= loopMinTokens {
			period, found = p, true
		}
	}
	if !found || d.reported {
		return 0, false
	}
	d.reported = true
	return period, true
}
