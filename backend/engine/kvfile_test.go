package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"
)

func save(t *testing.T, s *Session, store KVStore, name string) {
	t.Helper()
	if err := s.SaveKV(context.Background(), store, name); err != nil {
		t.Fatal(err)
	}
}

func load(t *testing.T, m *Model, store KVStore, name string) (*Session, int) {
	t.Helper()
	s := newSession(t, m)
	n, err := s.LoadKV(context.Background(), store, name)
	if err != nil {
		t.Fatal(err)
	}
	return s, n
}

// A conversation that was put away goes on with the same words, and computes only what is new.
func TestConversationsResume(t *testing.T) {
	for name, dir := range map[string]string{
		"drafting": newCheckpoint(5, oddModels()["mla groups, MTP"]).write(t),
		"dsa":      newCheckpoint(5, oddModels()["dsa"]).write(t),
		"gqa":      newCheckpoint(5, oddModels()["gqa"]).write(t),
	} {
		t.Run(name, func(t *testing.T) {
			store := KVStore{Dir: filepath.Join(t.TempDir(), "kv")}
			m := loadModel(t, dir)
			prompt := randomIDs(rand.New(rand.NewPCG(6, 6)), 560, m.config.Vocabulary)
			s := newSession(t, m)
			r, _ := ask(t, s, greedyRequest(prompt, 9))
			save(t, s, store, "a")
			prompt = slices.Concat(prompt, r.IDs, []int32{3, 1, 4})

			again := loadModel(t, dir) // as after a restart
			resumed, n := load(t, again, store, "a")
			if want := len(prompt) - 3 - 1; n > want || n < want-1 {
				t.Errorf("%d tokens came back of %d", n, want)
			}
			got, _ := ask(t, resumed, greedyRequest(prompt, 9))
			if got.ReusedTokens < n-1 {
				t.Errorf("%d of %d tokens were reused", got.ReusedTokens, n)
			}
			if m.drafts && got.Stats.DraftTokens == 0 {
				t.Error("the resumed conversation does not draft")
			}
			want, _ := ask(t, s, greedyRequest(prompt, 9))
			if !slices.Equal(got.IDs, want.IDs) {
				t.Errorf("resumed %v, not resumed %v", got.IDs, want.IDs)
			}

			// Saved again, the file grows by what is new; after an edit, it is cut.
			before := fileSize(t, store, "a")
			save(t, resumed, store, "a")
			layout := kvLayoutOf(again, resumed.drafts())
			if grown, most := fileSize(t, store, "a")-before, 14*layout.rowBytes(); grown <= 0 || grown > most {
				t.Errorf("the file grew by %d bytes, at most %d are new", grown, most)
			}
			edited := slices.Clone(prompt[:400])
			ask(t, resumed, greedyRequest(edited, 5))
			save(t, resumed, store, "a")
			third, n := load(t, again, store, "a")
			if n < 400 || n > 405 || !slices.Equal(third.Tokens()[:400], edited) {
				t.Errorf("after an edit %d tokens came back", n)
			}
		})
	}
}

func fileSize(t *testing.T, store KVStore, name string) int64 {
	t.Helper()
	info, err := os.Stat(store.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}

func TestDamagedAndForeignFilesAreIgnored(t *testing.T) {
	store := KVStore{Dir: t.TempDir()}
	dir := oracleDir("deepseek_v3")
	o, m := loadOracle(t, dir), loadModel(t, dir)
	s := newSession(t, m)
	ask(t, s, greedyRequest(o.Prompt, 8))
	save(t, s, store, "a")
	whole, err := os.ReadFile(store.path("a"))
	if err != nil {
		t.Fatal(err)
	}
	const seed = 12
	random := rand.New(rand.NewPCG(seed, 0))
	for trial := range 60 {
		damaged := slices.Clone(whole)
		if trial%3 == 0 {
			damaged = damaged[:random.IntN(len(damaged))]
		} else {
			damaged[random.IntN(len(damaged))] ^= 1 << random.IntN(8)
		}
		if err := os.WriteFile(store.path("a"), damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		loaded, n := load(t, m, store, "a")
		if n != 0 {
			t.Fatalf("seed %d trial %d: %d tokens of a damaged file were used", seed, trial, n)
		}
		if trial%20 == 0 {
			if r, _ := ask(t, loaded, greedyRequest(o.Prompt, 8)); !slices.Equal(r.IDs, o.Greedy[:8]) {
				t.Fatalf("after a damaged file: %v", r.IDs)
			}
			save(t, loaded, store, "a")
			if _, n := load(t, m, store, "a"); n == 0 {
				t.Fatal("a damaged file was not replaced")
			}
		}
	}
	// Another model of the same shape.
	if err := os.WriteFile(store.path("a"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, n := load(t, loadModel(t, oracleDir("glm4_moe_lite")), store, "a"); n != 0 {
		t.Errorf("%d tokens of another model were used", n)
	}
	if _, n := load(t, m, store, "never saved"); n != 0 {
		t.Errorf("%d tokens came from nowhere", n)
	}
	if err := store.Remove("a"); err != nil {
		t.Error(err)
	}
	if _, n := load(t, m, store, "a"); n != 0 {
		t.Errorf("%d tokens came back after removal", n)
	}
}

func TestTheLongestUnusedConversationIsForgottenFirst(t *testing.T) {
	store := KVStore{Dir: t.TempDir()}
	o, m := loadOracle(t, oracleDir("qwen3_moe")), loadModel(t, oracleDir("qwen3_moe"))
	names := []string{"a", "b", "c"}
	for i, name := range names {
		s := newSession(t, m)
		ask(t, s, greedyRequest(o.Prompt, 4))
		save(t, s, store, name)
		at := time.Now().Add(time.Duration(i-10) * time.Minute)
		if err := os.Chtimes(store.path(name), at, at); err != nil {
			t.Fatal(err)
		}
	}
	load(t, m, store, "a") // used now
	store.LimitBytes = 3*fileSize(t, store, "a") + 10
	s := newSession(t, m)
	ask(t, s, greedyRequest(o.Prompt, 4))
	save(t, s, store, "d")
	for name, want := range map[string]bool{"a": true, "b": false, "c": true, "d": true} {
		_, n := load(t, m, store, name)
		if (n > 0) != want {
			t.Errorf("%s: %d tokens", name, n)
		}
	}
	store.LimitBytes = 1
	save(t, s, store, "d")
	if files, _ := filepath.Glob(filepath.Join(store.Dir, "*")); len(files) != 0 {
		t.Errorf("a limit of one byte leaves %v", files)
	}
}

// A session that is shared by conversations finds each of them by its words.
func TestConversationsAreFoundByTheirWords(t *testing.T) {
	store := KVStore{Dir: t.TempDir()}
	m := loadModel(t, newCheckpoint(5, oddModels()["mla groups, MTP"]).write(t))
	random := rand.New(rand.NewPCG(9, 9))
	system := randomIDs(random, 40, m.config.Vocabulary)
	texts := [][]int32{}
	for range 3 {
		texts = append(texts, slices.Concat(system, randomIDs(random, 150, m.config.Vocabulary)))
	}
	ctx := context.Background()
	turn := func(s *Session, i int) Result {
		if _, err := s.ResumeKV(ctx, store, texts[i]); err != nil {
			t.Fatal(err)
		}
		r, _ := ask(t, s, greedyRequest(texts[i], 6))
		save(t, s, store, fmt.Sprint(i))
		texts[i] = slices.Concat(texts[i], r.IDs, []int32{7, 8})
		return r
	}
	s := newSession(t, m)
	for i := range texts {
		turn(s, i)
	}
	for range 2 {
		for i := range texts {
			// The same session, after other conversations.
			if r := turn(s, i); r.ReusedTokens < r.PromptTokens-6 {
				t.Errorf("conversation %d reused %d of %d tokens", i, r.ReusedTokens, r.PromptTokens)
			}
		}
	}
	if files, _ := filepath.Glob(filepath.Join(store.Dir, "*")); len(files) != len(texts) {
		t.Errorf("%d conversations are kept in %d files", len(texts), len(files))
	}
	// After a restart, and edited near its end.
	texts[1] = texts[1][:len(texts[1])-20]
	if r := turn(newSession(t, m), 1); r.ReusedTokens < r.PromptTokens-3 {
		t.Errorf("after an edit %d of %d tokens were reused", r.ReusedTokens, r.PromptTokens)
	}
	if n, err := newSession(t, m).ResumeKV(ctx, store, randomIDs(random, 200, m.config.Vocabulary)); n != 0 || err != nil {
		t.Errorf("a new conversation resumes %d tokens (%v)", n, err)
	}
}

// The first token of a second question in a conversation of 1,500 tokens after a restart, with what was kept of it on disk and without.
func BenchmarkSecondQuestion(b *testing.B) {
	dir, store, ctx := bundledDir(b), KVStore{Dir: filepath.Join(b.TempDir(), "kv")}, context.Background()
	question := func(m *Model, prompt []int32, resume bool) (Result, *Session) {
		s, err := m.NewSession()
		if err != nil {
			b.Fatal(err)
		}
		if resume {
			if n, err := s.ResumeKV(ctx, store, prompt); err != nil || n < 1400 {
				b.Fatalf("%d tokens came back: %v", n, err)
			}
		}
		r, err := s.Generate(ctx, greedyRequest(prompt, 1), func(Piece) error { return nil })
		if err != nil {
			b.Fatal(err)
		}
		return r, s
	}
	m := openModel(b, dir, Options{})
	prompt := randomIDs(rand.New(rand.NewPCG(6, 6)), 1500, m.config.Vocabulary)
	r, s := question(m, prompt, false)
	if err := s.SaveKV(ctx, store, "a"); err != nil {
		b.Fatal(err)
	}
	prompt = slices.Concat(prompt, r.IDs, []int32{3, 1, 4, 1, 5, 9, 2, 6})
	for _, resume := range []bool{true, false} {
		b.Run(map[bool]string{true: "kept", false: "from nothing"}[resume], func(b *testing.B) {
			for b.Loop() {
				_, s := question(m, prompt, resume)
				_ = s.Close()
			}
		})
	}
}
