package chat

import "strings"

// Splitter tells thinking from answer by the tags <think> and </think> in generated text, for models whose vocabulary has no
// tokens for them (see Prompt.Splitter); everywhere else the engine does so by token id. Only a <think> that begins the
// output opens thinking, only a </think> outside of code ends it, and in the answer neither means anything.
type Splitter struct {
	state       splitState
	held        string // text that may still become a tag or a fence
	lineStart   bool   // held begins a line
	inFence     bool   // between lines of ```
	inBackticks bool   // between two ` in one line
}

type splitState uint8

const (
	atStart splitState = iota
	inThinking
	inAnswer
)

// NewSplitter begins an output; thinkingOpen says that it begins inside thinking.
func NewSplitter(thinkingOpen bool) *Splitter {
	s := &Splitter{lineStart: true}
	if thinkingOpen {
		s.state = inThinking
	}
	return s
}

// Push takes generated text and returns what it adds to thinking and answer. It holds back only what may become a tag.
func (s *Splitter) Push(text string) (thinking, answer string) {
	s.held += text
	if s.state == atStart {
		begin := strings.TrimLeft(s.held, " \t\r\n")
		if len(begin) < len(thinkStart) && strings.HasPrefix(thinkStart, begin) {
			return "", ""
		}
		s.state = inAnswer
		if rest, ok := strings.CutPrefix(begin, thinkStart); ok {
			s.state, s.held = inThinking, rest
		}
	}
	if s.state == inThinking {
		thinking = s.think()
	}
	if s.state == inAnswer {
		answer, s.held = s.held, ""
	}
	return thinking, answer
}

const fence = "```"

// think consumes the held text up to the end of thinking, or to where a tag may begin.
func (s *Splitter) think() string {
	var out strings.Builder
	for s.held != "" {
		n := 1
		switch c := s.held[0]; {
		case c == '\n':
			s.lineStart, s.inBackticks = true, false
			out.WriteByte(c)
			s.held = s.held[1:]
			continue
		case c == '`':
			if s.lineStart && len(s.held) < len(fence) && strings.HasPrefix(fence, s.held) {
				return out.String()
			}
			if s.lineStart && strings.HasPrefix(s.held, fence) {
				s.inFence = !s.inFence
				n = len(fence)
			} else if !s.inFence {
				s.inBackticks = !s.inBackticks
			}
		case c == '<' && !s.inFence && !s.inBackticks:
			if strings.HasPrefix(s.held, thinkEnd) {
				s.held = s.held[len(thinkEnd):]
				s.state = inAnswer
				return out.String()
			}
			if strings.HasPrefix(thinkEnd, s.held) {
				return out.String()
			}
		}
		s.lineStart = s.lineStart && (s.held[0] == ' ' || s.held[0] == '\t')
		out.WriteString(s.held[:n])
		s.held = s.held[n:]
	}
	return out.String()
}

// Flush ends the output and returns what was held back.
func (s *Splitter) Flush() (thinking, answer string) {
	text := s.held
	s.held = ""
	if s.state == inThinking {
		return text, ""
	}
	return "", text
}
