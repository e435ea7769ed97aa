package app

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"colibri/backend/bundled"
	"colibri/backend/container"
)

func TestAnOfferMeasuresTheMachineUnlessAnAnswerIsWritten(t *testing.T) {
	f := newFixture(t)
	count := func() int {
		f.engine.mu.Lock()
		defer f.engine.mu.Unlock()
		return f.engine.measured
	}
	f.engine.describe = func(string) (Container, error) {
		c := Container{Family: "olmoe", Bytes: 1}
		if count() > 0 {
			c.SpeedLow, c.SpeedHigh = 3, 5
		}
		return c, nil
	}
	offered := func() (o Offer) {
		must(t, json.Unmarshal(f.wait("offer", nil).Data, &o))
		return o
	}
	offer := func() Container {
		t.Helper()
		f.OpenPaths([]string{t.TempDir()})
		o := offered()
		for o.Measuring {
			o = offered()
		}
		return *o.Container
	}
	model := f.ready()
	g := f.send(f.newChat(), "", "Hello")
	<-model.requests
	if c := offer(); c.SpeedHigh != 0 || count() != 0 {
		t.Errorf("during an answer: %+v, measured %d times", c, count())
	}
	model.end <- answerEnd{answered: Answered{FinishReason: "stop"}}
	f.finished(g.Answer)
	<-f.turn // given back after the answer's end was told
	f.giveTurn()
	for range 2 {
		if c := offer(); c.SpeedLow != 3 || c.SpeedHigh != 5 || count() != 1 {
			t.Errorf("%+v, measured %d times", c, count())
		}
	}
}

// Measuring takes a second or two: what is offered is on the page before, and may be taken or refused before.
func TestAnOfferIsThereBeforeItsSpeed(t *testing.T) {
	f := newFixture(t)
	fast := func(string) (Container, error) {
		return Container{Family: "olmoe", Bytes: 1, SpeedLow: 3, SpeedHigh: 5}, nil
	}
	begun, end := make(chan bool), make(chan bool)
	f.engine.measure = func() {
		begun <- true
		<-end
		f.engine.describe = fast // read by the same goroutine, next
	}
	open := func() Offer {
		t.Helper()
		f.engine.describe = func(string) (Container, error) { return Container{Family: "olmoe", Bytes: 1}, nil }
		f.OpenPaths([]string{t.TempDir()})
		<-begun
		var o Offer
		must(t, json.Unmarshal(f.wait("offer", nil).Data, &o))
		if !o.Measuring || o.Container == nil || o.Container.SpeedHigh != 0 {
			t.Fatalf("%+v", o)
		}
		return o
	}
	listed := func() { f.wait("containers", nil) }

	open()
	end <- true
	var o Offer
	must(t, json.Unmarshal(f.wait("offer", nil).Data, &o))
	if o.Measuring || o.Container.SpeedHigh != 5 {
		t.Errorf("measured: %+v", o)
	}
	f.DismissOffer(o.ID)

	id, err := f.AcceptOffer(open().ID)
	must(t, err)
	listed()
	end <- true
	listed()
	if c := f.Containers()[1]; c.ID != id || c.SpeedHigh != 5 {
		t.Errorf("taken before it was measured: %+v", c)
	}

	f.DismissOffer(open().ID)
	end <- true
	f.cancel()
	f.work.Wait()
	if len(f.offers) != 0 {
		t.Errorf("refused, and there again: %+v", f.offers)
	}
}

// The rates are measured once, kept, and measured again by another build.
func TestRatesAreKept(t *testing.T) {
	dir, err := bundled.Path(t.Context())
	must(t, err)
	d, err := container.Describe(dir)
	must(t, err)
	path := filepath.Join(t.TempDir(), "cache", "machine.json")
	m := &measuredRates{path: path}
	if rates := m.known(); rates.Has(d.Multiplied) {
		t.Fatalf("known before anything was measured: %+v", rates)
	}
	must(t, m.measure(t.Context(), d))
	again := &measuredRates{path: path}
	rates := again.known()
	if !rates.Has(d.Multiplied) || rates.LayerSeconds != m.known().LayerSeconds {
		t.Errorf("kept: %+v", rates)
	}
	e := realEngine{rates: again}
	c, err := e.Describe(t.Context(), dir, 0)
	must(t, err)
	if c.NeedBytes <= 0 || c.SpeedLow <= 0 || c.SpeedHigh < c.SpeedLow {
		t.Errorf("%+v", c)
	}
	t.Logf("expected %.0f to %.0f tokens a second; %+v", c.SpeedLow, c.SpeedHigh, rates)
	again.file.For = "Colibri 0.0.1"
	must(t, writeJSON(path, again.file))
	if rates := (&measuredRates{path: path}).known(); rates.Has(d.Multiplied) {
		t.Error("the rates of another build are believed")
	}
	must(t, os.WriteFile(path, []byte("{damaged"), 0o600))
	if rates := (&measuredRates{path: path}).known(); rates.Has(d.Multiplied) {
		t.Error("damaged rates are believed")
	}
}
