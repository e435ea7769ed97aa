package app

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"colibri/backend/bundled"
	"colibri/backend/chat"
)

func TestThinkingWrittenAsTextIsToldFromTheAnswer(t *testing.T) {
	var got []Token
	s := splitting{chat.NewSplitter(false), func(t Token) error { got = append(got, t); return nil }}
	for _, text := range []string{"<th", "ink>", "Hm", "m.</thi", "nk>So", ": 4"} {
		must(t, s.push(Token{Text: text}))
	}
	must(t, s.flush())
	var thinking, answer strings.Builder
	for _, token := range got {
		if token.Thinking {
			thinking.WriteString(token.Text)
		} else {
			answer.WriteString(token.Text)
		}
	}
	if thinking.String() != "Hmm." || answer.String() != "So: 4" {
		t.Errorf("thinking %q, answer %q of %v", thinking.String(), answer.String(), got)
	}
	stop := errors.New("stop")
	s = splitting{chat.NewSplitter(true), func(Token) error { return stop }}
	if err := s.push(Token{Text: "a</think>b"}); !errors.Is(err, stop) {
		t.Errorf("the receiver's %v was lost", err)
	}
}

// The bundled model, its tokens for thinking renamed, with a template that opens thinking in text, and one that closes it: what it writes is
// thinking, and is not.
func TestATemplateThatOpensThinkingInTextIsObeyed(t *testing.T) {
	from, err := bundled.Path(t.Context())
	must(t, err)
	for opened, source := range map[bool]string{
		true:  "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think>\n",
		false: "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think></think>\n",
	} {
		dir := t.TempDir()
		must(t, os.CopyFS(dir, os.DirFS(from)))
		must(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(source), 0o644))
		tokens := filepath.Join(dir, "tokenizer.json")
		raw, err := os.ReadFile(tokens)
		must(t, err)
		without := strings.NewReplacer(`"<think>"`, `"<musing>"`, `"</think>"`, `"</musing>"`).Replace(string(raw))
		must(t, os.WriteFile(tokens, []byte(without), 0o644))
		m, err := RealEngine(t.TempDir()).Load(t.Context(), dir, "cpu", 0, func(string, float64) {})
		must(t, err)
		sampling := balanced()
		sampling.MaxTokens, sampling.Seed = 12, 1
		var thinking, answer int
		_, err = m.Answer(context.Background(), Request{
			Conversation: "c", Messages: []chat.Message{{Role: chat.User, Text: "What is a hummingbird?"}}, Sampling: sampling,
		}, func(token Token) error {
			if token.Thinking {
				thinking += len(token.Text)
			} else {
				answer += len(token.Text)
			}
			return nil
		})
		must(t, errors.Join(err, m.Close()))
		if (thinking > 0) != opened || (answer > 0) == opened {
			t.Errorf("opened %t: %d bytes of thinking, %d of answer", opened, thinking, answer)
		}
	}
}
