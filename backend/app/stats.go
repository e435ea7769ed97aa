package app

import (
	"time"

	"colibri/backend/residency"
	"colibri/backend/telemetry"
)

const (
	busyInterval = 100 * time.Millisecond // gauge and curves move at 10 Hz while the engine works
	idleInterval = 2 * time.Second        // other programs' memory changes slowly
)

// rates turns counters into figures per second over about the last second.
type rates struct {
	at       time.Time
	snapshot telemetry.Snapshot
	tokens   float64
	read     float64
	split    TimeSplit
}

func (r *rates) add(now time.Time, s telemetry.Snapshot) {
	elapsed := now.Sub(r.at)
	if s.Tokens < r.snapshot.Tokens || s.ReadBytes < r.snapshot.ReadBytes || s.Attention < r.snapshot.Attention { // another model
		*r = rates{at: now, snapshot: s}
		return
	}
	if elapsed < time.Second {
		return
	}
	r.tokens = float64(s.Tokens-r.snapshot.Tokens) / elapsed.Seconds()
	r.read = float64(s.ReadBytes-r.snapshot.ReadBytes) / elapsed.Seconds()
	before := r.snapshot
	r.split = TimeSplit{
		Tokens:          int64(s.Tokens - before.Tokens),
		AttentionMillis: millis(s.Attention - before.Attention), ExpertMillis: millis(s.Experts - before.Experts),
		WaitMillis: millis(s.Wait - before.Wait), OtherMillis: millis(s.Other - before.Other),
	}
	r.at, r.snapshot = now, s
}

func millis(d time.Duration) float64 { return float64(d) / 1e6 }

// sampleStats sends what the gauge shows, as long as a page watches.
func (a *App) sampleStats() {
	defer a.work.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-a.ctx.Done():
			return
		case <-a.poked:
		case <-timer.C:
		}
		a.mu.Lock()
		busy := len(a.generations) > 0 || a.model.Phase == ModelLoading
		if a.visible {
			a.events.post("stats", "stats", a.statsLocked())
		}
		a.mu.Unlock()
		if busy {
			timer.Reset(busyInterval)
		} else {
			timer.Reset(idleInterval)
		}
	}
}

// poke makes the next sample due now.
func (a *App) poke() {
	select {
	case a.poked <- struct{}{}:
	default:
	}
}

// SetVisible says whether a page is on the screen; figures are not sent to a hidden one.
func (a *App) SetVisible(visible bool) {
	a.mu.Lock()
	a.visible = visible
	a.mu.Unlock()
	a.poke()
}

// Stats are the current figures.
func (a *App) Stats() Stats {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.statsLocked()
}

func (a *App) statsLocked() Stats {
	var s Stats
	if a.model.loaded != nil && a.model.Phase == ModelReady {
		s.Snapshot = a.model.loaded.Stats()
		s.HitRate = s.Snapshot.HitRate()
	}
	a.rates.add(time.Now(), s.Snapshot)
	s.TokensPerSecond, s.ReadPerSecond, s.Split = a.rates.tokens, a.rates.read, a.rates.split
	s.Memory = systemMemory()
	if time.Since(a.pressureAt) > pressureInterval {
		a.pressureAt, a.pressure = time.Now(), pressure()
	}
	s.Pressure = a.pressure
	return s
}

// pressureInterval: macOS answers more frequent questions with old figures.
const pressureInterval = 2 * time.Second

// pressure is the system's own judgement of its memory.
func pressure() string {
	state, err := residency.ReadMemory()
	if err != nil {
		return "unknown"
	}
	switch state.Pressure {
	case residency.Critical:
		return "critical"
	case residency.Warn:
		return "warning"
	}
	return "normal"
}

// Atlas is the layer × expert picture of the loaded model, empty without one.
func (a *App) Atlas() telemetry.Atlas {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.model.loaded == nil || a.model.Phase != ModelReady {
		return telemetry.Atlas{}
	}
	return a.model.loaded.Atlas()
}
