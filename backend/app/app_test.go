package app

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"colibri/backend/chat"
)

func contains(e Event, part string) bool { return strings.Contains(string(e.Data), part) }

func TestAnAnswerIsStreamedKeptAndReceipted(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "How do hummingbirds hover?")
	r := <-model.requests
	if len(r.Messages) != 1 || r.Messages[0] != (chat.Message{Role: "user", Text: "How do hummingbirds hover?"}) {
		t.Fatalf("the model was asked %+v", r.Messages)
	}
	r.Progress(3, 7)
	f.wait("generation", func(e Event) bool { return contains(e, `"promptDone":3`) })
	model.tokens <- Token{Text: "Hm. ", Thinking: true}
	model.tokens <- Token{Text: "They beat "}
	model.tokens <- Token{Text: "fast."}
	model.end <- answerEnd{answered: Answered{FinishReason: "stop", Seed: 42, TokensPerSecond: math.NaN()}}
	m := f.finished(g.Answer)
	if m.Text != "They beat fast." || m.Thinking != "Hm. " || m.State != MessageDone {
		t.Errorf("kept: %+v", m)
	}
	if m.Receipt == nil || m.Receipt.Seed != 42 || m.Receipt.Tokens != 3 || m.Receipt.TokensPerSecond != 0 {
		t.Errorf("receipt: %+v", m.Receipt)
	}
	c, err := f.store.Conversation(id)
	if err != nil || c.Head != g.Answer || c.Title != "How do hummingbirds hover?" {
		t.Errorf("conversation: %+v, %v", c, err)
	}
}

func TestTheModelIsLoadedWhenTheFirstQuestionComes(t *testing.T) {
	f := newFixture(t)
	id := f.newChat()
	g := f.send(id, "", "Hello")
	if dir := <-f.engine.loads; dir != "/bundled" {
		t.Fatalf("loaded %q", dir)
	}
	f.engine.proceed <- nil
	f.wait("model", func(e Event) bool { return contains(e, `"phase":"ready"`) })
	model := f.engine.models[0]
	<-model.requests
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	if m := f.finished(g.Answer); m.State != MessageDone {
		t.Errorf("%+v", m)
	}
}

func TestALoadThatFailsFailsTheWaitingAnswerWithItsSentence(t *testing.T) {
	f := newFixture(t)
	id := f.newChat()
	g := f.send(id, "", "Hello")
	<-f.engine.loads
	f.engine.proceed <- errors.New("the memory limit is too low")
	if m := f.finished(g.Answer); m.State != MessageFailed || !strings.HasPrefix(m.Error, "The memory limit is too low. The question") {
		t.Errorf("%+v", m)
	}
	// Nothing was generated, but the question is there to be asked again.
	if q := f.store.messages[g.Question]; q.Text != "Hello" {
		t.Errorf("question: %+v", q)
	}
}

func TestStopKeepsWhatWasWritten(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	model.tokens <- Token{Text: "one two"}
	f.wait("piece", nil)
	f.Stop(id)
	m := f.finished(g.Answer)
	if m.State != MessageStopped || m.Text != "one two" {
		t.Errorf("%+v", m)
	}
	f.Stop(id) // stopping nothing is no error
	// The next question goes to the same model.
	g = f.send(id, g.Answer, "Again")
	r := <-model.requests
	if len(r.Messages) != 3 || r.Messages[1].Text != "one two" {
		t.Errorf("turns: %+v", r.Messages)
	}
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	f.finished(g.Answer)
}

func TestAFailingEngineKeepsTheTextAndSaysWhy(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	model.tokens <- Token{Text: "one"}
	model.end <- answerEnd{err: errors.New("expert 3 of layer 2 could not be read: input/output error")}
	m := f.finished(g.Answer)
	if m.State != MessageFailed || m.Text != "one" || !strings.Contains(m.Error, "input/output") {
		t.Errorf("%+v", m)
	}
}

func TestSwitchingModelsStopsCleanlyAndFreesTheOldOneFirst(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	other := addContainer(f, "/other")
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	model.tokens <- Token{Text: "one"}
	f.must(f.LoadModel(other))
	if m := f.finished(g.Answer); m.State != MessageStopped || m.Text != "one" {
		t.Errorf("%+v", m)
	}
	<-model.closed // before the new one is loaded
	if dir := <-f.engine.loads; dir != filepath.Join(f.opts.DataDir, "/other") {
		t.Errorf("loaded %q", dir)
	}
	f.engine.proceed <- nil
	f.wait("model", func(e Event) bool { return contains(e, `"phase":"ready"`) && contains(e, other) })
}

// addContainer puts a container into the library the way a drop does.
func addContainer(f *fixture, name string) string {
	f.t.Helper()
	dir := filepath.Join(f.opts.DataDir, name)
	f.must(os.MkdirAll(dir, 0o755))
	f.OpenPaths([]string{dir})
	var offer Offer
	f.must(json.Unmarshal(f.wait("offer", nil).Data, &offer))
	id, err := f.AcceptOffer(offer.ID)
	f.must(err)
	return id
}

func TestACancelledLoadLeavesNoModel(t *testing.T) {
	f := newFixture(t)
	f.must(f.LoadModel(BundledID))
	<-f.engine.loads
	f.must(f.UnloadModel())
	f.wait("model", func(e Event) bool { return contains(e, `"phase":"none"`) })
	f.ready() // and the next one loads
}

func TestTheNewestOfManyLoadsWins(t *testing.T) {
	f := newFixture(t)
	a, b := addContainer(f, "/a"), addContainer(f, "/b")
	for _, id := range []string{BundledID, a, b, a, b} {
		f.must(f.LoadModel(id))
	}
	for {
		dir := <-f.engine.loads
		if strings.HasSuffix(dir, "/b") {
			break
		}
	}
	f.engine.proceed <- nil
	f.wait("model", func(e Event) bool { return contains(e, `"phase":"ready"`) })
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.model.ID != b {
		t.Errorf("loaded %q", f.model.ID)
	}
}

func TestRegenerateEditAndContinueMakeBranches(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	answer := func(text, reason string) {
		<-model.requests
		model.tokens <- Token{Text: text}
		model.end <- answerEnd{answered: Answered{FinishReason: reason}}
	}
	first := f.send(id, "", "A?")
	answer("a1", "stop")
	f.finished(first.Answer)
	second, err := f.Generate(GenerateRequest{Conversation: id, Mode: "regenerate", Parent: first.Question})
	f.must(err)
	answer("a2", "length")
	f.finished(second.Answer)
	_, err = f.Generate(GenerateRequest{Conversation: id, Mode: "continue", Parent: second.Answer})
	f.must(err)
	r := <-model.requests
	if !r.Continue || r.Messages[len(r.Messages)-1] != (chat.Message{Role: "assistant", Text: "a2"}) {
		t.Errorf("continue asked %+v", r)
	}
	model.tokens <- Token{Text: " and on"}
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	if m := f.finished(second.Answer); m.Text != "a2 and on" {
		t.Errorf("continued: %+v", m)
	}
	edited := f.send(id, "", "B?")
	answer("b", "stop")
	f.finished(edited.Answer)

	tr, err := f.Transcript(id)
	f.must(err)
	if len(tr.Messages) != 5 || tr.Conversation.Head != edited.Answer {
		t.Fatalf("%d messages, head %s", len(tr.Messages), tr.Conversation.Head)
	}
	f.must(f.SelectBranch(id, first.Question))
	tr, _ = f.Transcript(id)
	if tr.Conversation.Head != second.Answer && tr.Conversation.Head != first.Answer {
		t.Errorf("head %s", tr.Conversation.Head)
	}
	f.must(f.SelectBranch(id, first.Answer))
	tr, _ = f.Transcript(id)
	if tr.Conversation.Head != first.Answer {
		t.Errorf("head %s, want the first answer", tr.Conversation.Head)
	}
}

func TestTranscriptAndEventsTogetherAreTheText(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	var want strings.Builder
	text := map[int64]string{} // piece texts by event number
	for i := range 200 {
		piece := string(rune('a'+i%26)) + "é"
		want.WriteString(piece)
		model.tokens <- Token{Text: piece}
		if i != 100 {
			continue
		}
		tr, err := f.Transcript(id) // a page that is opened in the middle
		f.must(err)
		model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
		for ended := false; !ended; {
			switch e := <-f.events; e.Kind {
			case "piece":
				var p Piece
				f.must(json.Unmarshal(e.Data, &p))
				text[e.Seq] = p.Text
			case "message":
				ended = true
			}
		}
		var got string
		for _, m := range tr.Messages {
			if m.ID == g.Answer {
				got = m.Text
			}
		}
		// All the text up to the snapshot is in it; the events after it carry the rest.
		for _, seq := range slices.Sorted(maps.Keys(text)) {
			if seq > tr.Seq {
				got += text[seq]
			}
		}
		if got != want.String() {
			t.Errorf("snapshot has %q, want %q", got, want.String())
		}
		return
	}
}

func TestFiguresOfAnAnswerAreToldAtThePaceOfReading(t *testing.T) {
	told := time.Unix(0, 0)
	g := generation{posted: GenerationStatus{Phase: "prefill"}, postedAt: told}
	g.status = GenerationStatus{Phase: "decode", Tokens: 1}
	if !g.due(told) {
		t.Error("another phase waits")
	}
	g.posted, g.status.Tokens = g.status, 50
	for after, want := range map[time.Duration]bool{0: false, 240 * time.Millisecond: false, 250 * time.Millisecond: true, time.Hour: true} {
		if g.due(told.Add(after)) != want {
			t.Errorf("%v after the last: told is %v", after, !want)
		}
	}
}

func TestTheLastFiguresOfAnAnswerAreTold(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	f.send(f.newChat(), "", "Count")
	<-model.requests
	for range 3 {
		model.tokens <- Token{Text: "one "}
	}
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	f.wait("generation", func(e Event) bool { return contains(e, `"phase":"done"`) && contains(e, `"tokens":3`) })
}

func TestAPauseHoldsTheAnswerBetweenTwoTokens(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	f.SetPaused(true)
	f.SetPaused(true)
	model.tokens <- Token{Text: "one"}
	f.wait("piece", nil)
	select {
	case model.tokens <- Token{Text: "two"}:
		t.Fatal("the engine went on while paused")
	default:
	}
	f.SetPaused(false)
	model.tokens <- Token{Text: " two"}
	f.SetPaused(true)
	f.Stop(id) // also ends a held answer
	if m := f.finished(g.Answer); m.State != MessageStopped || m.Text != "one two" {
		t.Errorf("%+v", m)
	}
}

func TestAStoreThatFailsLosesNothingOnTheScreen(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	f.store.mu.Lock()
	f.store.fail = errors.New("the disk is full")
	f.store.mu.Unlock()
	model.tokens <- Token{Text: "one"}
	f.wait("piece", func(e Event) bool { return contains(e, "one") })
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	f.wait("notice", func(e Event) bool { return contains(e, "could not be written") && contains(e, "the disk is full") })
	f.wait("message", func(e Event) bool { return contains(e, g.Answer) })
	if _, err := f.Generate(GenerateRequest{Conversation: id, Mode: "send", Parent: g.Answer, Text: "more"}); err == nil {
		t.Error("a question that could not be kept was accepted")
	}
}

func TestClosingInTheMiddleKeepsTheAnswer(t *testing.T) {
	store := newMemoryStore()
	engine := newScriptedEngine()
	a, err := New(Options{DataDir: t.TempDir(), Engine: engine, Store: store, Send: func(Event) {},
		Bundled: func(context.Context) (string, error) { return "/bundled", nil }})
	if err != nil {
		t.Fatal(err)
	}
	c, _ := a.NewConversation()
	g, err := a.Generate(GenerateRequest{Conversation: c.ID, Mode: "send", Text: "Count"})
	if err != nil {
		t.Fatal(err)
	}
	<-engine.loads
	engine.proceed <- nil
	for len(engine.loads) > 0 || engineModel(a) == nil {
		time.Sleep(time.Millisecond)
	}
	model := engineModel(a).(*scriptedModel)
	<-model.requests
	model.tokens <- Token{Text: "one"}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := a.Close(ctx); err != nil {
		t.Fatal(err)
	}
	if m := store.messages[g.Answer]; m.Text != "one" || m.State != MessageStopped {
		t.Errorf("%+v", m)
	}
	<-model.closed
}

func engineModel(a *App) Model {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.model.loaded
}

func TestStateAndDeleteAndRestore(t *testing.T) {
	f := newFixture(t)
	model := f.ready()
	id := f.newChat()
	g := f.send(id, "", "Count")
	<-model.requests
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	f.finished(g.Answer)
	f.must(f.Rename(id, "  Numbers \n and more "))
	f.must(f.Pin(id, true))
	s, err := f.State()
	f.must(err)
	if len(s.Conversations) != 1 || s.Conversations[0].Title != "Numbers and more" || !s.Conversations[0].Pinned {
		t.Errorf("%+v", s.Conversations)
	}
	f.must(f.Delete(id))
	f.wait("notice", func(e Event) bool { return contains(e, "undo-delete") && contains(e, id) })
	if s, _ = f.State(); len(s.Conversations) != 0 {
		t.Error("still there")
	}
	f.must(f.Restore(id))
	if s, _ = f.State(); len(s.Conversations) != 1 {
		t.Error("not restored")
	}
	if err := f.Rename(id, " \n "); err == nil {
		t.Error("an empty title was accepted")
	}
}

func TestWhatDoesNotFitIsLeftOutAndCounted(t *testing.T) {
	f := newFixture(t) // 100 tokens, one for each byte, 25 of them for the answer
	model := f.ready()
	id := f.newChat()
	f.must(f.Configure(id, "codeword: colibri", nil))
	parent := ""
	for i, want := range []int{0, 0, 2} {
		g := f.send(id, parent, strings.Repeat("q", 20))
		r := <-model.requests
		if r.Messages[0].Role != chat.System || r.Messages[len(r.Messages)-1].Role != chat.User {
			t.Errorf("question %d: asked %+v", i, r.Messages)
		}
		model.tokens <- Token{Text: "answer"}
		model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
		if m := f.finished(g.Answer); m.Receipt.DroppedMessages != want {
			t.Errorf("question %d: %d messages were left out, want %d", i, m.Receipt.DroppedMessages, want)
		}
		parent = g.Answer
	}
	g := f.send(id, parent, strings.Repeat("q", 200))
	if m := f.finished(g.Answer); m.State != MessageFailed || !strings.Contains(m.Error, "tokens") {
		t.Errorf("a question that cannot fit: %+v", m)
	}
}

func TestDroppedPathsBecomeOffers(t *testing.T) {
	f := newFixture(t)
	dir := filepath.Join(f.opts.DataDir, "Größe und Maß.colibri")
	f.must(os.MkdirAll(dir, 0o755))
	file := filepath.Join(dir, "model.safetensors")
	f.must(os.WriteFile(file, nil, 0o644))
	f.engine.describe = func(path string) (Container, error) {
		if path != dir {
			return Container{}, errors.New("config.json is missing")
		}
		return Container{Family: "olmoe", SpeedHigh: 1}, nil
	}
	f.OpenPaths([]string{file, "relative", "/nowhere/at all", filepath.Dir(dir)})
	byPath := map[string]Offer{}
	for range 4 {
		var o Offer
		f.must(json.Unmarshal(f.wait("offer", nil).Data, &o))
		byPath[o.Path] = o
	}
	good := byPath[dir]
	if good.Container == nil || good.Container.Name != "Größe und Maß" {
		t.Fatalf("%+v", good)
	}
	for path, part := range map[string]string{"relative": "full path", "/nowhere/at all": "nothing at", filepath.Dir(dir): "config.json"} {
		if !strings.Contains(byPath[path].Error, part) {
			t.Errorf("%s: %q", path, byPath[path].Error)
		}
		if _, err := f.AcceptOffer(byPath[path].ID); err == nil {
			t.Errorf("%s was accepted", path)
		}
	}
	id, err := f.AcceptOffer(good.ID)
	f.must(err)
	f.OpenPaths([]string{dir}) // again: the same entry
	var o Offer
	f.must(json.Unmarshal(f.wait("offer", nil).Data, &o))
	again, err := f.AcceptOffer(o.ID)
	f.must(err)
	if again != id || len(f.Containers()) != 2 {
		t.Errorf("%s and %s, %d models", id, again, len(f.Containers()))
	}
	f.must(os.RemoveAll(dir))
	if !f.Containers()[1].Missing {
		t.Error("a container that is gone is not shown as missing")
	}
	f.must(f.RemoveContainer(id))
	if err := f.RemoveContainer(BundledID); err == nil {
		t.Error("the bundled model could be removed")
	}
}

func TestSettingsSurviveAndDamageIsSetAside(t *testing.T) {
	f := newFixture(t)
	s := f.Settings()
	s.Appearance, s.Sampling.Temperature = "dark", 1.3
	f.must(f.SaveSettings(s))
	s.Sampling.Temperature = math.NaN()
	if err := f.SaveSettings(s); err == nil {
		t.Error("a temperature of NaN was accepted")
	}
	path := filepath.Join(f.opts.DataDir, "settings.json")
	read, notice, err := readSettings(path)
	if err != nil || notice != "" || read.Appearance != "dark" || read.Sampling.Temperature != 1.3 {
		t.Errorf("%+v, %q, %v", read, notice, err)
	}
	for name, content := range map[string]string{"half": `{"appearance": "da`, "invalid": `{"appearance": "purple"}`} {
		f.must(os.WriteFile(path, []byte(content), 0o600))
		read, notice, err = readSettings(path)
		if err != nil || notice == "" || !reflect.DeepEqual(read, DefaultSettings()) {
			t.Errorf("%s: %q, %v", name, notice, err)
		}
		aside, _ := filepath.Glob(path + ".damaged-*")
		if len(aside) == 0 {
			t.Errorf("%s: the damaged file is gone", name)
		}
	}
}

func TestExportAndImportKeepTheTree(t *testing.T) {
	f := newFixture(t)
	now := int64(1000)
	c := Conversation{ID: "c", Title: "A/B: test?", Head: "a2", SystemPrompt: "Be brief."}
	f.must(f.store.PutConversation(c))
	for _, m := range []Message{
		{ID: "q", Conversation: "c", Role: "user", Text: "Why?", State: MessageDone, Created: now},
		{ID: "a1", Conversation: "c", Parent: "q", Role: "assistant", Text: "Because.", State: MessageDone, Created: now + 1},
		{ID: "a2", Conversation: "c", Parent: "q", Role: "assistant", Text: "So.", State: MessageStopped, Created: now + 2},
	} {
		f.must(f.store.PutMessage(m))
	}
	name, md, err := f.Export("c", "markdown")
	f.must(err)
	if name != "A-B- test-.md" && name != "A-B- test.md" {
		t.Errorf("name %q", name)
	}
	for _, part := range []string{"# A/B: test?", "> Be brief.", "Why?", "So.", "(stopped)"} {
		if !strings.Contains(string(md), part) {
			t.Errorf("the export lacks %q:\n%s", part, md)
		}
	}
	if strings.Contains(string(md), "Because.") {
		t.Error("the export has a version that is not shown")
	}
	_, raw, err := f.Export("c", "json")
	f.must(err)
	path := filepath.Join(t.TempDir(), "x.json")
	f.must(WriteExport(path, raw))
	n, err := f.Import(path)
	if n != 1 || err != nil {
		t.Fatal(n, err)
	}
	all, _ := f.store.Conversations()
	i := slices.IndexFunc(all, func(c Conversation) bool { return c.ID != "c" })
	if i < 0 {
		t.Fatal("nothing was imported")
	}
	messages, _ := f.store.Messages(all[i].ID)
	if len(messages) != 3 || messages[2].Parent != messages[0].ID || all[i].Head != messages[2].ID || messages[2].Text != "So." {
		t.Errorf("%+v %+v", all[i], messages)
	}
	for name, bad := range map[string]string{
		"other":  `{"format":"x"}`,
		"newer":  `{"format":"colibri-conversations","version":9}`,
		"orphan": `{"format":"colibri-conversations","version":1,"conversations":[{"conversation":{},"messages":[{"id":"1","parent":"2","role":"user"}]}]}`,
		"head":   `{"format":"colibri-conversations","version":1,"conversations":[{"conversation":{"head":"z"},"messages":[]}]}`,
		"role":   `{"format":"colibri-conversations","version":1,"conversations":[{"conversation":{},"messages":[{"id":"1","role":"system"}]}]}`,
	} {
		f.must(os.WriteFile(path, []byte(bad), 0o600))
		if n, err := f.Import(path); err == nil || n != 0 {
			t.Errorf("%s: imported %d", name, n)
		}
	}
}

// Two thousand events, one after the other, would keep the page busy for seconds: it reads the list again instead.
func TestManyImportedChatsAreToldAtOnce(t *testing.T) {
	for _, c := range []struct {
		chats int
		told  map[string]int
	}{
		{maxAnnounced, map[string]int{"conversation": maxAnnounced}},
		{maxAnnounced + 1, map[string]int{"resync": 1}},
	} {
		f := newFixture(t)
		file := exported{Format: exportFormat, Version: 1}
		for range c.chats {
			file.Conversations = append(file.Conversations, exportedChat{Messages: []Message{}})
		}
		raw, err := json.Marshal(file)
		f.must(err)
		path := filepath.Join(t.TempDir(), "many.json")
		f.must(os.WriteFile(path, raw, 0o600))
		if n, err := f.Import(path); err != nil || n != c.chats {
			t.Fatalf("%d chats were imported: %v", n, err)
		}
		f.MenuCommand("last")
		told := map[string]int{}
		for e := range f.events {
			if e.Kind == "menu" {
				break
			}
			if e.Kind != "stats" {
				told[e.Kind]++
			}
		}
		if !maps.Equal(told, c.told) {
			t.Errorf("%d chats: %v, want %v", c.chats, told, c.told)
		}
	}
}

// The page's types are written by hand; a field that was renamed on one side only would be undefined in silence.
func TestTypeScriptMirrorsGo(t *testing.T) {
	source, err := os.ReadFile("../../frontend/src/lib/bridge/types.ts")
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range []any{
		Command{}, State{}, Settings{}, Preset{}, Window{}, Sampling{}, Conversation{}, Message{}, Transcript{}, Receipt{}, Hit{}, Container{}, Offer{},
		ModelStatus{}, GenerationStatus{}, Piece{}, Notice{}, Stats{}, TimeSplit{}, SystemMemory{}, GenerateRequest{}, Generated{}, ContextUse{}, About{},
	} {
		typ := reflect.TypeOf(v)
		body := regexp.MustCompile(`(?s)export interface ` + typ.Name() + ` \{\n(.*?)\n\}`).FindSubmatch(source)
		if body == nil {
			t.Errorf("types.ts has no %s", typ.Name())
			continue
		}
		var ts, goFields []string
		for _, m := range regexp.MustCompile(`(?m)^  (\w+)\??:`).FindAllSubmatch(body[1], -1) {
			ts = append(ts, string(m[1]))
		}
		for i := range typ.NumField() {
			if name, _, _ := strings.Cut(typ.Field(i).Tag.Get("json"), ","); name != "" && name != "-" {
				goFields = append(goFields, name)
			}
		}
		slices.Sort(ts)
		slices.Sort(goFields)
		if !slices.Equal(ts, goFields) {
			t.Errorf("%s: TypeScript has %v, Go has %v", typ.Name(), ts, goFields)
		}
	}
}
