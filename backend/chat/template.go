package chat

import (
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"colibri/backend/chat/jinja"
	"colibri/backend/tokenizer"
)

// Template makes prompts for one model. It is read-only after loading and safe for any number of goroutines.
type Template struct {
	source     string
	program    *jinja.Template
	tokenizer  *tokenizer.Tokenizer
	tokens     map[string]string // bos_token and such, by their names in templates
	stopIDs    []int32
	thinkStart int32 // 0 without
	thinkEnd   int32
}

// The markers around a model's thinking.
const (
	thinkStart = "<think>"
	thinkEnd   = "</think>"
)

const (
	templateFile   = "chat_template.jinja"
	configFile     = "tokenizer_config.json"
	maxConfigBytes = 16 << 20
)

var (
	//go:embed templates/glm.jinja
	glmTemplate string
	//go:embed templates/glm-mini.jinja
	glmMiniTemplate string
)

// LoadTemplate reads the chat template of the model in dir: chat_template.jinja, or the one in tokenizer_config.json, or, for
// models of the GLM family that come without, a built-in one. eos are the stop ids of the model's configuration.
func LoadTemplate(dir string, tok *tokenizer.Tokenizer, eos []int) (*Template, error) {
	config, err := readConfig(filepath.Join(dir, configFile))
	if err != nil {
		return nil, err
	}
	origin := filepath.Join(dir, templateFile)
	source, err := readBounded(origin)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		origin, source = filepath.Join(dir, configFile), config.template
		if source == "" {
			origin = "the built-in template"
			if source, err = builtIn(tok); err != nil {
				return nil, fmt.Errorf("%s: %w", dir, err)
			}
		}
	case err != nil:
		return nil, fmt.Errorf("reading the chat template: %w", err)
	}
	program, err := jinja.Parse(source)
	if err != nil {
		return nil, fmt.Errorf("the chat template in %s cannot be used: %w", origin, err)
	}
	t := &Template{source: source, program: program, tokenizer: tok, tokens: config.tokens}
	if start, ok := tok.TokenID(thinkStart); ok && tok.IsSpecial(start) {
		t.thinkStart = start
	}
	if end, ok := tok.TokenID(thinkEnd); ok && tok.IsSpecial(end) {
		t.thinkEnd = end
	}
	if _, err := t.render([]Message{{Role: User, Text: "Hello"}}, map[string]any{"add_generation_prompt": true}); err != nil {
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	for _, id := range eos {
		t.stopIDs = append(t.stopIDs, int32(id))
	}
	if id, ok := tok.TokenID(config.tokens["eos_token"]); ok && config.tokens["eos_token"] != "" {
		t.stopIDs = append(t.stopIDs, id)
	}
	t.stopIDs = append(t.stopIDs, t.turnMarkers()...)
	slices.Sort(t.stopIDs)
	t.stopIDs = slices.Compact(t.stopIDs)
	return t, nil
}

// builtIn chooses a template for a GLM model that brought none. The published models since GLM-4.5 have markers for images
// and code in their vocabulary and think; the bundled model has neither.
func builtIn(tok *tokenizer.Tokenizer) (string, error) {
	for _, marker := range []string{"[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", thinkStart, thinkEnd} {
		if _, ok := tok.TokenID(marker); !ok {
			return "", fmt.Errorf("the model has no chat template (%s, or chat_template in %s) and is not of the GLM family, for which one is built in; "+
				"copy the file from the model's publisher", templateFile, configFile)
		}
	}
	for _, marker := range []string{"/nothink", "<|begin_of_image|>", "<|code_prefix|>"} {
		if _, ok := tok.TokenID(marker); ok {
			return glmTemplate, nil
		}
	}
	return glmMiniTemplate, nil
}

// tokenizerConfig is what templates need of tokenizer_config.json.
type tokenizerConfig struct {
	template string
	tokens   map[string]string
}

func readConfig(path string) (c tokenizerConfig, err error) {
	text, err := readBounded(path)
	if errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	if err != nil {
		return c, fmt.Errorf("reading the chat template: %w", err)
	}
	var file map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &file); err != nil {
		return c, fmt.Errorf("%s is not valid JSON: %w; copy it again from the model's publisher", path, err)
	}
	c.tokens = map[string]string{}
	for _, name := range []string{"bos_token", "eos_token", "pad_token", "unk_token"} {
		var plain string
		var object struct{ Content string }
		if json.Unmarshal(file[name], &plain) == nil {
			c.tokens[name] = plain
		} else if json.Unmarshal(file[name], &object) == nil {
			c.tokens[name] = object.Content
		}
	}
	raw, ok := file["chat_template"]
	if !ok || string(raw) == "null" {
		return c, nil
	}
	var named []struct{ Name, Template string }
	if json.Unmarshal(raw, &c.template) == nil {
		return c, nil
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return c, fmt.Errorf("%s: chat_template is neither a text nor a list of named texts", path)
	}
	for _, n := range named {
		if n.Name == "default" || len(named) == 1 {
			c.template = n.Template
			return c, nil
		}
	}
	return c, fmt.Errorf("%s: none of its %d chat templates is named default", path, len(named))
}

func readBounded(path string) (string, error) {
	info, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Size() > maxConfigBytes {
		return "", fmt.Errorf("%s is not a file of at most %d MB", path, maxConfigBytes>>20)
	}
	data, err := os.ReadFile(path)
	return string(data), err
}

// render runs the template over messages.
func (t *Template) render(messages []Message, options map[string]any) ([]tokenizer.Segment, error) {
	texts := []string{t.source}
	variables := map[string]any{}
	for name, text := range t.tokens {
		variables[name] = text
		texts = append(texts, text)
	}
	for name, v := range options {
		variables[name] = v
	}
	m := newMask(texts...)
	list := make([]any, len(messages))
	for i, message := range messages {
		text, err := m.hide(message.Text)
		if err != nil {
			return nil, err
		}
		d := jinja.NewDict()
		d.Set("role", message.Role)
		d.Set("content", text)
		if message.Thinking != "" {
			thinking, err := m.hide(message.Thinking)
			if err != nil {
				return nil, err
			}
			d.Set("reasoning_content", thinking)
		}
		list[i] = d
	}
	variables["messages"] = list
	rendered, err := t.program.Render(variables)
	if err != nil {
		var raised *jinja.RaisedError
		if errors.As(err, &raised) {
			return nil, fmt.Errorf("the model's chat template refuses this conversation: %s", oneLine(raised.Message))
		}
		return nil, fmt.Errorf("the model's chat template fails: %w", err)
	}
	return m.reveal(rendered), nil
}

// oneLine keeps a template's own words short enough for a message.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > 300 {
		return string(runes[:300]) + "…"
	}
	return text
}

// turnMarkers are the control tokens that the template puts after an answer: a model that writes one has ended its turn,
// whether or not its configuration lists the token.
func (t *Template) turnMarkers() (ids []int32) {
	for _, role := range []string{User, "tool"} {
		segments, err := t.render([]Message{{Role: User, Text: "Q"}, {Role: Assistant, Text: "A"}, {Role: role, Text: "N"}}, nil)
		if err != nil {
			continue // a template without tools, for one
		}
		answer := slices.IndexFunc(segments, func(s tokenizer.Segment) bool { return !s.Special && s.Text == "A" })
		if answer < 0 || answer+1 == len(segments) || !segments[answer+1].Special {
			continue
		}
		after, err := t.tokenizer.EncodeSegments(segments[answer+1 : answer+2])
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(after, t.tokenizer.IsSpecial); i >= 0 {
			ids = append(ids, after[i])
		}
	}
	return ids
}
