package residency

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// machineUnderTest plays a machine to the governor: millis is its time per token by size, pressure what its system says at a
// time and size.
type machineUnderTest struct {
	ceiling, floor int64
	size           int64
	millis         func(size int64) float64
	pressure       func(seconds float64, size int64) (Pressure, float64)
	noise          *rand.Rand // ± 2 % on every reading; nil: none
	seconds        float64
	moves          int
	sizes          []int64
}

// run plays readings of 4 seconds each.
func (m *machineUnderTest) run(t *testing.T, g Governor, readings int) Governor {
	t.Helper()
	for range readings {
		m.seconds += 4
		ms := m.millis(m.size)
		if m.noise != nil {
			ms *= 0.98 + 0.04*m.noise.Float64()
		}
		r := Reading{Seconds: m.seconds, CeilingBytes: m.ceiling, FloorBytes: m.floor, SlotBytes: m.size,
			Tokens: max(1, int(4000/ms)), TokenMillis: ms}
		if m.pressure != nil {
			r.Pressure, r.ThrashBytesPerSecond = m.pressure(m.seconds, m.size)
		}
		var d Decision
		g, d = Govern(g, r)
		if d.SlotBytes > m.ceiling || d.SlotBytes < m.floor {
			t.Fatalf("at %v s: %d bytes, outside %d to %d", m.seconds, d.SlotBytes, m.floor, m.ceiling)
		}
		if (d.SlotBytes != m.size) != (d.Reason != "") {
			t.Fatalf("at %v s: %d to %d because %q", m.seconds, m.size, d.SlotBytes, d.Reason)
		}
		// An eighth up, or back after an eighth down.
		if grown := d.SlotBytes - m.size; grown > m.size/7+1 && d.SlotBytes > m.size {
			t.Fatalf("at %v s: grew by %d from %d", m.seconds, grown, m.size)
		}
		if d.SlotBytes != m.size {
			m.moves++
			m.size = d.SlotBytes
		}
		m.sizes = append(m.sizes, m.size)
	}
	return g
}

// peaked is a machine that is fastest at best and slower on both sides, as published curves are.
func peaked(best float64) func(int64) float64 {
	return func(size int64) float64 {
		x := float64(size) / best
		if x < 1 {
			return 100 * (1 + 1.2*(1-x)) // misses
		}
		return 100 * (1 + 1.5*(x-1)) // the compressor
	}
}

func TestTheGovernorFindsThePeakFromEitherSide(t *testing.T) {
	for _, start := range []int64{10 * gib, 20 * gib, 35 * gib, 55 * gib, 75 * gib} {
		for seed := range uint64(3) {
			m := &machineUnderTest{ceiling: 75 * gib, floor: gib, size: start, millis: peaked(35 * gib), noise: rand.New(rand.NewPCG(seed, 1))}
			m.run(t, Governor{}, 1000)
			if ms := m.millis(m.size); ms > 125 {
				t.Errorf("from %s, seed %d: ends at %s, %.0f ms where 100 can be had", formatBytes(start), seed, formatBytes(m.size), ms)
			}
		}
	}
}

func TestWhereBiggerIsBetterTheGovernorGoesToTheLimit(t *testing.T) {
	m := &machineUnderTest{ceiling: 64 * gib, floor: gib, size: 16 * gib, millis: func(size int64) float64 { return 40 + 4000/float64(size>>30) }}
	m.run(t, Governor{}, 600)
	largest := int64(0)
	for _, s := range m.sizes[300:] {
		largest = max(largest, s)
	}
	if m.size < 50*gib {
		t.Errorf("ends at %s", formatBytes(m.size))
	}
}

func TestPressureShrinksAtOnceAndGrowthIsSlow(t *testing.T) {
	flat := func(int64) float64 { return 100 }
	for _, c := range []struct {
		pressure Pressure
		thrash   float64
		within   int // readings
		atMost   int64
	}{{Warn, 0, 1, 30 * gib}, {Critical, 0, 1, 20 * gib}, {Calm, 100 << 20, 2, 30 * gib}} {
		start := 10000.0
		m := &machineUnderTest{ceiling: 40 * gib, floor: gib, size: 40 * gib, millis: flat,
			pressure: func(s float64, _ int64) (Pressure, float64) {
				if s > start && s <= start+4*float64(c.within) {
					return c.pressure, c.thrash
				}
				return Calm, 0
			}}
		g := m.run(t, Governor{}, 5)
		start = m.seconds
		m.size = 40 * gib
		g = m.run(t, g, c.within)
		if m.size > c.atMost {
			t.Errorf("%v: still %s", c.pressure, formatBytes(m.size))
		}
		shrunk := m.size
		g = m.run(t, g, 14) // 56 seconds
		if m.size > shrunk {
			t.Errorf("%v: grew again within a minute", c.pressure)
		}
		m.run(t, g, 1500)
		if m.size <= shrunk {
			t.Errorf("%v: did not grow back in an hour and a half: %s", c.pressure, formatBytes(m.size))
		}
	}
}

func TestRecurringPressureIsNotProvokedAgainAndAgain(t *testing.T) {
	// The system complains whenever experts take more than 20 GiB.
	complaints := 0
	m := &machineUnderTest{ceiling: 40 * gib, floor: gib, size: 30 * gib, millis: func(size int64) float64 { return 40 + 4000/float64(size>>30) },
		pressure: func(_ float64, size int64) (Pressure, float64) {
			if size > 20*gib {
				complaints++
				return Warn, 0
			}
			return Calm, 0
		}}
	m.run(t, Governor{}, 900) // an hour
	if complaints > 12 {
		t.Errorf("the system complained %d times in an hour", complaints)
	}
	if m.size < 10*gib {
		t.Errorf("ends at %s where 20 GiB are free", formatBytes(m.size))
	}
}

func TestACalmMachineIsNotShrunkInAShortSession(t *testing.T) {
	m := &machineUnderTest{ceiling: 40 * gib, floor: gib, size: 40 * gib, millis: func(int64) float64 { return 40 }}
	m.run(t, Governor{}, 20) // 2,000 tokens
	for _, size := range m.sizes[:19] {
		if size != 40*gib {
			t.Fatalf("tried %s without a reason", formatBytes(size))
		}
	}
}

func TestALoweredLimitIsKeptAtOnce(t *testing.T) {
	m := &machineUnderTest{ceiling: 40 * gib, floor: gib, size: 40 * gib, millis: peaked(60 * gib)}
	g := m.run(t, Governor{}, 50)
	m.ceiling = 5 * gib
	m.run(t, g, 1)
	if m.size > 5*gib {
		t.Errorf("%s under a limit of 5 GiB", formatBytes(m.size))
	}
}

func TestTheGovernorIsQuietWhenIdleAndWhenSettled(t *testing.T) {
	if _, d := Govern(Governor{}, Reading{Seconds: 4, CeilingBytes: 10, FloorBytes: 1, SlotBytes: 5}); d.Reason != "" || d.SlotBytes != 5 {
		t.Errorf("idle: %+v", d)
	}
	m := &machineUnderTest{ceiling: 75 * gib, floor: gib, size: 35 * gib, millis: peaked(35 * gib)}
	m.run(t, Governor{}, 2000) // more than two hours
	if perHour := float64(m.moves) / (m.seconds / 3600); perHour > 30 {
		t.Errorf("%v moves an hour", perHour)
	}
}

func TestTheGovernorStaysInBoundsWhateverHappens(t *testing.T) {
	for seed := range uint64(50) {
		random := rand.New(rand.NewPCG(seed, 9))
		m := &machineUnderTest{ceiling: 1 + random.Int64N(100*gib), millis: func(int64) float64 { return 1 + 500*random.Float64() },
			pressure: func(float64, int64) (Pressure, float64) {
				return Pressure(random.IntN(12) / 10), 60e6 * random.Float64()
			}}
		m.floor = 1 + random.Int64N(m.ceiling)
		m.size = m.floor + random.Int64N(m.ceiling-m.floor+1)
		t.Run(fmt.Sprint(seed), func(t *testing.T) { m.run(t, Governor{}, 500) })
	}
}
