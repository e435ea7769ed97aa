package residency

import "fmt"

// Pressure is the system's word on memory.
type Pressure int

const (
	Calm     Pressure = iota
	Warn              // the system is taking memory back from programs
	Critical          // it is about to stop some
)

func (p Pressure) String() string { return [...]string{"calm", "warn", "critical"}[p] }

// Reading is what the governor looks at, once every few seconds.
type Reading struct {
	Seconds float64 // a clock that only grows
	// CeilingBytes is the most that experts may take now: the user's limit less what is resident, KV, scratch and reads in
	// flight. FloorBytes is the least they need.
	CeilingBytes, FloorBytes int64
	SlotBytes                int64 // what they may take at present
	Pressure                 Pressure
	// ThrashBytesPerSecond is how much the system decompressed or swapped in since the last reading, a second: memory that is in
	// use was not there.
	ThrashBytesPerSecond float64
	// Tokens and TokenMillis are the tokens generated since the last reading and their mean time; both 0 when idle.
	Tokens      int
	TokenMillis float64
}

// Governor moves the size of the expert memory: down at once under pressure, otherwise towards the size with the shortest measured
// time per token, in small steps, and never above the ceiling. It is a value: Govern takes one and returns the next.
//
// Formulas are wrong by up to 3x on some machine (published curves have their peak at 8 to 75 GB), so it climbs by results. A
// trial changes the size by an eighth, lets the cache settle, measures, and is kept only if it is not slower.
type Governor struct {
	phase       phase
	base        int64   // the size that the trial is compared with
	baseMillis  float64 // its time per token; 0: not known
	up          bool    // the direction of the trial
	failures    int     // directions that did not help, since the last that did
	tokens      int     // measured at this size, after settling
	millis      float64 // their sum
	settling    int     // tokens still to be ignored
	quietUntil  float64 // no growth before this
	backoff     float64 // seconds of quiet after the next pressure
	cap         int64   // growth ends below this size, under which there was pressure; 0: none
	lastShrink  float64
	shrunkOnce  bool
	thrashCount int
	seen        int  // tokens since the start
	uneasy      bool // the system brought memory back since the last measurement, a little at least
}

type phase int

const (
	measuring phase = iota // the present size, to have something to compare with
	trying                 // a changed size
	resting                // both directions are worse: stay for a while
)

const (
	settleTokens  = 48 // a changed cache has turned over by then
	measureTokens = 96 // enough to tell 5 % in the presence of the content's own variation
	betterBy      = 1.05
	firstQuiet    = 60.0  // seconds without growth after pressure …
	longestQuiet  = 900.0 // … doubled each time pressure comes back
	restSeconds   = 600.0
	shrinkPause   = 2.0 // seconds between two shrinks for the same warning: freeing takes effect with a delay
	// firstShrinkTokens: a calm system gets no trial of a smaller size before this many tokens. Such a trial costs misses for
	// a while, and is for the rare machine where a larger cache is slower without the compressor's doing.
	firstShrinkTokens = 2000
	uneasyBytes       = 1 << 20
	// thrashBytes a second: below it the compressor works on what nobody uses. flash-moe saw 60,000 to 130,000 pages of 16 KiB a second.
	thrashBytes = 16 << 20
)

// Decision is what to do with the expert memory.
type Decision struct {
	SlotBytes int64
	Reason    string // a sentence for the activity panel; empty if nothing changes
}

// Govern looks at a reading.
func Govern(g Governor, r Reading) (Governor, Decision) {
	stay := Decision{SlotBytes: clampBytes(r.SlotBytes, r.FloorBytes, r.CeilingBytes)}
	if stay.SlotBytes != r.SlotBytes {
		stay.Reason = fmt.Sprintf("experts may take %s under the limit", formatBytes(stay.SlotBytes))
		g.restart(r)
		return g, stay
	}
	if r.ThrashBytesPerSecond >= thrashBytes && r.Tokens > 0 {
		g.thrashCount++
	} else {
		g.thrashCount = 0
	}
	// One busy reading may be another program starting; two in a row are our cache.
	thrash := g.thrashCount >= 2
	if r.Pressure > Calm || thrash {
		return g.shrink(r, thrash)
	}
	if r.Tokens == 0 {
		return g, stay
	}
	g.seen += r.Tokens
	g.uneasy = g.uneasy || r.ThrashBytesPerSecond >= uneasyBytes
	if g.settling > 0 {
		g.settling -= r.Tokens
		return g, stay
	}
	g.tokens += r.Tokens
	g.millis += r.TokenMillis * float64(r.Tokens)
	if g.tokens < measureTokens {
		return g, stay
	}
	millis := g.millis / float64(g.tokens)
	g.tokens, g.millis = 0, 0
	g, decision := g.climb(r, millis, stay)
	g.uneasy = false
	return g, decision
}

// Settled is the size at which the governor rests because neither a smaller nor a larger one was faster, and its time per token. ok is
// false while it is still looking.
func (g Governor) Settled() (slotBytes int64, tokenMillis float64, ok bool) {
	return g.base, g.baseMillis, g.phase == resting && g.baseMillis > 0
}

// shrink reacts to pressure: at once, by half when it is critical, by a quarter otherwise.
func (g Governor) shrink(r Reading, thrash bool) (Governor, Decision) {
	stay := Decision{SlotBytes: r.SlotBytes}
	if g.shrunkOnce && r.Seconds-g.lastShrink < shrinkPause && r.Pressure < Critical {
		return g, stay
	}
	to := r.SlotBytes - r.SlotBytes/4
	why := "memory is short"
	switch {
	case r.Pressure == Critical:
		to, why = r.SlotBytes/2, "memory is very short"
	case r.Pressure == Calm && thrash:
		why = "the system compresses memory that is in use"
	}
	to = max(to, r.FloorBytes)
	if g.backoff = min(max(2*g.backoff, firstQuiet), longestQuiet); g.shrunkOnce && r.Seconds-g.lastShrink < shrinkPause*4 {
		g.backoff = max(g.backoff/2, firstQuiet) // the same episode counts once
	}
	if !g.shrunkOnce || r.Seconds-g.lastShrink > longestQuiet {
		g.backoff = firstQuiet
	}
	g.cap = r.SlotBytes
	g.lastShrink, g.shrunkOnce, g.quietUntil = r.Seconds, true, r.Seconds+g.backoff
	g.thrashCount = 0
	g.restart(r)
	if to == r.SlotBytes {
		return g, stay
	}
	return g, Decision{to, fmt.Sprintf("%s: experts shrink from %s to %s", why, formatBytes(r.SlotBytes), formatBytes(to))}
}

// restart forgets what was measured at another size.
func (g *Governor) restart(Reading) {
	g.phase, g.baseMillis, g.failures, g.tokens, g.millis, g.settling = measuring, 0, 0, 0, 0, settleTokens
	g.up = true
}

// climb decides with a fresh measurement of the present size.
func (g Governor) climb(r Reading, millis float64, stay Decision) (Governor, Decision) {
	switch g.phase {
	case measuring:
		g.base, g.baseMillis = r.SlotBytes, millis
		return g.try(r, stay)
	case trying:
		kept := millis <= g.baseMillis
		if !g.up {
			kept = millis*betterBy <= g.baseMillis // a smaller cache must be clearly better
		} else if millis <= g.baseMillis*betterBy {
			kept = true // a larger one must not be clearly worse
		}
		if kept {
			g.base, g.baseMillis, g.failures = r.SlotBytes, millis, 0
			return g.try(r, stay)
		}
		g.failures++
		g.up = !g.up
		back := Decision{clampBytes(g.base, r.FloorBytes, r.CeilingBytes),
			fmt.Sprintf("%.0f ms a token with %s of experts, %.0f before: back to %s", millis, formatBytes(r.SlotBytes), g.baseMillis, formatBytes(g.base))}
		if g.failures >= 2 {
			g.phase, g.quietUntil = resting, max(g.quietUntil, r.Seconds+restSeconds)
		} else {
			g.phase = measuring
		}
		g.settling = settleTokens
		return g, back
	default: // resting
		if r.Seconds >= g.quietUntil {
			g.failures, g.phase, g.up = 0, measuring, true
		}
		return g, stay
	}
}

// try changes the size by an eighth in the present direction, or rests where there is nowhere to go.
func (g Governor) try(r Reading, stay Decision) (Governor, Decision) {
	step := max(r.SlotBytes/8, 1)
	ceiling := r.CeilingBytes
	if g.cap > 0 {
		if r.Seconds < g.lastShrink+longestQuiet {
			ceiling = min(ceiling, g.cap-1)
		} else {
			g.cap = 0
		}
	}
	to := clampBytes(r.SlotBytes-step, r.FloorBytes, r.CeilingBytes)
	if g.up {
		to = clampBytes(r.SlotBytes+step, r.FloorBytes, max(ceiling, r.SlotBytes))
	}
	if g.up && r.Seconds < g.quietUntil {
		g.phase = measuring
		return g, stay
	}
	if !g.up && !g.uneasy && g.seen < firstShrinkTokens {
		g.phase = measuring
		return g, stay
	}
	if to == r.SlotBytes {
		if g.failures++; g.failures >= 2 {
			g.phase, g.quietUntil = resting, max(g.quietUntil, r.Seconds+restSeconds)
			return g, stay
		}
		g.up = !g.up
		g.phase = measuring
		return g, stay
	}
	g.phase, g.settling = trying, settleTokens
	word := "more"
	if !g.up {
		word = "less"
	}
	return g, Decision{to, fmt.Sprintf("trying %s memory for experts: %s", word, formatBytes(to))}
}

func clampBytes(v, low, high int64) int64 { return max(low, min(v, high)) }
