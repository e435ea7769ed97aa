package store

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// helperPath, in the environment, makes the test program a writer that is to be killed.
const helperPath = "COLIBRI_STORE_HELPER"

func TestMain(m *testing.M) {
	if path := os.Getenv(helperPath); path != "" {
		streamUntilKilled(path)
	}
	os.Exit(m.Run())
}

// streamUntilKilled writes conversations, one answer each of up to 400 pieces, and says after every call that returned what
// it was: "put ID" for whole messages, "append ID PIECE MILLIS" for pieces, with the time since it began.
func streamUntilKilled(path string) {
	s, _, err := Open(path)
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	began := time.Now()
	check := func(err error, format string, args ...any) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		fmt.Printf(format+"\n", args...)
	}
	for c := 0; ; c++ {
		id := fmt.Sprintf("%d-%d", os.Getpid(), c)
		check(s.PutConversation(conversation(id, "Title", int64(c))), "conversation %s", id)
		check(s.PutMessage(message(id+"q", id, "", "question about "+id)), "put %sq", id)
		answer := Message{ID: id + "a", Conversation: id, Parent: id + "q", Role: "assistant", State: Streaming}
		check(s.PutMessage(answer), "put %sa", id)
		for piece := range 400 {
			text := fmt.Sprintf("%d ", piece)
			check(s.AppendText(answer.ID, text, ""), "append %s %d %d", answer.ID, piece, time.Since(began).Milliseconds())
			answer.Text += text
			time.Sleep(4 * time.Millisecond) // the pace of a model: 250 tokens a second
		}
		answer.State = "done"
		check(s.PutMessage(answer), "put %sa", id)
	}
}

// Killed at any moment, the program has lost nothing that is older than a second, and the file opens. COLIBRI_SOAK=1 kills
// ten times as often.
func TestKilledAtAnyMoment(t *testing.T) {
	kills := 5
	if os.Getenv("COLIBRI_SOAK") == "1" {
		kills = 50
	}
	const seed = 20260802
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	path := filepath.Join(t.TempDir(), "conversations.db")
	puts := map[string]bool{}      // messages that were put whole
	pieces := map[string][]int64{} // by message: when each piece was acknowledged
	var last int64                 // the helper's clock at its last word
	for kill := range kills {
		stop := 1 + random.IntN(700) // lines until the kill: less than a second to a few
		helper := exec.Command(os.Args[0])
		helper.Env = append(os.Environ(), helperPath+"="+path)
		out, err := helper.StdoutPipe()
		must(t, err)
		must(t, helper.Start())
		lines := bufio.NewScanner(out)
		current := map[string]bool{} // answers of this run
		for n := 0; lines.Scan(); n++ {
			if n == stop {
				must(t, helper.Process.Kill())
			}
			// Lines after the kill were written before it, and count.
			fields := strings.Fields(lines.Text())
			switch fields[0] {
			case "put":
				puts[fields[1]] = true
			case "append":
				at, err := strconv.ParseInt(fields[3], 10, 64)
				must(t, err)
				pieces[fields[1]] = append(pieces[fields[1]], at)
				current[fields[1]] = true
				last = at
			case "error":
				t.Fatal(lines.Text())
			}
		}
		_ = helper.Wait() // killed
		s := openAt(t, path)
		stored := map[string]Message{}
		all, err := s.Conversations()
		must(t, err)
		for _, c := range all {
			messages, err := s.Messages(c.ID)
			must(t, err)
			for _, m := range messages {
				stored[m.ID] = m
			}
		}
		for id := range puts {
			if _, ok := stored[id]; !ok {
				t.Errorf("kill %d after %d lines: message %s is lost", kill, stop, id)
			}
		}
		for id, times := range pieces {
			m := stored[id]
			got := strings.Fields(m.Text)
			for i, piece := range got {
				if piece != strconv.Itoa(i) {
					t.Fatalf("kill %d: piece %d of %s is %q", kill, i, id, piece)
				}
			}
			for i := len(got); i < len(times); i++ {
				if !current[id] || last-times[i] > 1000 {
					t.Errorf("kill %d after %d lines: piece %d of %s is lost, %d ms old", kill, stop, i, id, last-times[i])
					break
				}
			}
			if m.State == Streaming {
				t.Errorf("kill %d: %s is still streaming", kill, id)
			}
			pieces[id] = times[:min(len(got), len(times))] // what was lost once is not looked for again
		}
		var result string
		must(t, s.read.QueryRow(`PRAGMA integrity_check`).Scan(&result))
		if result != "ok" {
			t.Errorf("kill %d: the file is not sound: %s", kill, result)
		}
		if hits, err := s.Search("question about", 5); err != nil || len(puts) > 0 && len(hits) == 0 {
			t.Errorf("kill %d: %v, %v", kill, hits, err)
		}
		must(t, s.Close())
	}
	if len(puts) == 0 || len(pieces) == 0 {
		t.Error("the helper wrote nothing")
	}
}
