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

// The bundled model with its tokenizer's JSON changed, and with a chat template unless it is "".
func bundledWith(t *testing.T, template string, oldNew ...string) string {
	t.Helper()
	from, err := bundled.Path(t.Context())
	must(t, err)
	dir := t.TempDir()
	must(t, os.CopyFS(dir, os.DirFS(from)))
	if template != "" {
		must(t, os.WriteFile(filepath.Join(dir, "chat_template.jinja"), []byte(template), 0o644))
	}
	tokens := filepath.Join(dir, "tokenizer.json")
	raw, err := os.ReadFile(tokens)
	must(t, err)
	for i := 0; i < len(oldNew); i += 2 {
		if !strings.Contains(string(raw), oldNew[i]) {
			t.Fatalf("the bundled tokenizer.json has no %q", oldNew[i])
		}
	}
	must(t, os.WriteFile(tokens, []byte(strings.NewReplacer(oldNew...).Replace(string(raw))), 0o644))
	return dir
}

func TestAnotherModelsTokenizerIsRefusedAndTokensThatNothingUsesAreNot(t *testing.T) {
	load := func(oldNew ...string) (Model, error) {
		return RealEngine(t.TempDir()).Load(t.Context(), bundledWith(t, "", oldNew...), "cpu", 0, func(string, float64) {})
	}
	const first = `"added_tokens": [`
	m, err := load(first, first+`{"id": 8192, "content": "<pad>", "special": true}, `)
	must(t, err)
	sampling := balanced()
	sampling.MaxTokens = 1
	_, err = m.Answer(t.Context(), Request{
		Conversation: "c", Messages: []chat.Message{{Role: chat.User, Text: "What is <pad>?"}}, Sampling: sampling,
	}, func(Token) error { return nil })
	must(t, errors.Join(err, m.Close()))
	m, err = load(
		"\"id\": 7,\n      \"content\": \"<|user|>\"", `"id": 9000, "content": "<|user|>"`,
		`"<|user|>": 7,`, `"<|another|>": 7,`,
	)
	if err == nil {
		must(t, m.Close())
		t.Fatal("a tokenizer whose every question the model cannot read was loaded")
	}
	for _, want := range []string{"9001 tokens and the model 8192", "belongs to another model; copy it from the original model"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v: says nothing of %q", err, want)
		}
	}
}

// The bundled model, its tokens for thinking renamed, with a template that opens thinking in text, and one that closes it: what it writes is
// thinking, and is not.
func TestATemplateThatOpensThinkingInTextIsObeyed(t *testing.T) {
	for opened, source := range map[bool]string{
		true:  "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think>\n",
		false: "{% for m in messages %}<|user|>{{ m.content }}{% endfor %}<|assistant|><think></think>\n",
	} {
		dir := bundledWith(t, source, `"<think>"`, `"<musing>"`, `"</think>"`, `"</musing>"`)
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
