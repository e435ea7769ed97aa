package app

import (
	"encoding/json"
	"log/slog"
	"sync"
	"time"
	"unicode/utf8"
)

// Event is one numbered message to the page. Numbers are consecutive from 1; a page that misses one asks for State.
type Event struct {
	Seq  int64           `json:"seq"`
	Kind string          `json:"kind"`
	Data json.RawMessage `json:"data"`
}

const (
	// maxEventBytes keeps an event below the size from which WebKit keeps the memory of evaluated scripts (8 KB).
	maxEventBytes = 7 << 10
	// maxPieceBytes is the text of one piece event: JSON may turn a byte into six ("\u0000").
	maxPieceBytes = 1 << 10
	// emitInterval is one frame of a 60 Hz display.
	emitInterval = time.Second / 60
)

// emitter is the one goroutine that sends. What is posted within a frame is joined: texts of one message are appended to
// each other, and of kinds with a key only the newest value is sent.
type emitter struct {
	send func(Event)
	log  *slog.Logger

	mu      sync.Mutex
	pending []pendingEvent
	outbox  []Event
	seq     int64
	wake    chan struct{}
	quit    chan struct{}
	done    chan struct{}
}

type pendingEvent struct {
	kind, key string
	data      any
}

func newEmitter(send func(Event), log *slog.Logger) *emitter {
	e := &emitter{send: send, log: log, wake: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{})}
	go e.run()
	return e
}

// post queues an event. With a key, an unsent event of the same kind and key is replaced; the new one takes its place at the end, so
// that causes stay before effects. Data must not change afterwards.
func (e *emitter) post(kind, key string, data any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if key != "" {
		for i, p := range e.pending {
			if p.kind == kind && p.key == key {
				e.pending = append(e.pending[:i], e.pending[i+1:]...)
				break
			}
		}
	}
	e.pending = append(e.pending, pendingEvent{kind, key, data})
	e.signal()
}

// piece queues text, appended to the message's unsent text. Figures that were posted in between stay after it: they are states, of which
// the newest counts. Everything else keeps its place, and text that comes after it comes after it.
func (e *emitter) piece(p Piece) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for i := len(e.pending) - 1; i >= 0; i-- {
		if last, ok := e.pending[i].data.(Piece); ok {
			if last.Message == p.Message && last.Thinking == p.Thinking {
				last.Text += p.Text
				e.pending[i].data = last
				e.signal()
				return
			}
			break
		}
		if kind := e.pending[i].kind; kind != "generation" && kind != "stats" && kind != "model" {
			break
		}
	}
	e.pending = append(e.pending, pendingEvent{kind: "piece", data: p})
	e.signal()
}

func (e *emitter) signal() {
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

// seal numbers everything posted so far and returns the last number: a State made under the same lock as the posts is then exactly
// the state after that event.
func (e *emitter) seal() int64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.sealLocked()
	return e.seq
}

func (e *emitter) sealLocked() {
	for _, p := range e.pending {
		if piece, ok := p.data.(Piece); ok {
			for _, text := range splitText(piece.Text, maxPieceBytes) {
				piece.Text = text
				e.number(p.kind, piece)
			}
			continue
		}
		e.number(p.kind, p.data)
	}
	e.pending = e.pending[:0]
}

func (e *emitter) number(kind string, data any) {
	raw, err := json.Marshal(finite(data))
	if err != nil || len(raw) > maxEventBytes {
		// The page fetches the whole state instead: an event is never dropped in silence.
		e.log.Error("an event does not fit", "kind", kind, "bytes", len(raw), "error", err)
		kind, raw = "resync", json.RawMessage("null")
	}
	e.seq++
	e.outbox = append(e.outbox, Event{Seq: e.seq, Kind: kind, Data: raw})
}

func (e *emitter) run() {
	defer close(e.done)
	for {
		select {
		case <-e.quit:
			e.flush()
			return
		case <-e.wake:
		}
		e.flush()
		select {
		case <-e.quit:
		case <-time.After(emitInterval):
		}
	}
}

func (e *emitter) flush() {
	e.mu.Lock()
	e.sealLocked()
	out := e.outbox
	e.outbox = nil
	e.mu.Unlock()
	for _, event := range out {
		e.send(event)
	}
}

func (e *emitter) close() {
	close(e.quit)
	<-e.done
}

// splitText cuts text into parts of at most limit bytes between characters.
func splitText(text string, limit int) []string {
	var parts []string
	for len(text) > limit {
		cut := limit
		for cut > 0 && !utf8.RuneStart(text[cut]) {
			cut--
		}
		parts = append(parts, text[:cut])
		text = text[cut:]
	}
	return append(parts, text)
}
