package tokenizer

import (
	"math/bits"
	"math/rand/v2"
)

// mergeTable maps pairs of neighbouring tokens to their merges. It is what encoding waits for: Go's map takes twice as long
// to fill and to search, because a miss there touches more cache lines.
type mergeTable struct {
	slots      []mergeSlot
	multiplier uint64 // odd and random, so that no file can be made to collide
	shift      uint
	count      int
}

type mergeSlot struct {
	key  uint64 // pairKey; 0: empty
	rank int32  // smaller ranks are merged first
	id   int32  // what the pair becomes
}

// pairKey is never 0, because ids stay below 2³².
func pairKey(left, right int32) uint64 { return uint64(uint32(left))<<32 | uint64(uint32(right)) + 1 }

func (m *mergeTable) find(key uint64) *mergeSlot {
	for i := key * m.multiplier >> m.shift; ; i = (i + 1) & uint64(len(m.slots)-1) {
		if slot := &m.slots[i]; slot.key == key || slot.key == 0 {
			return slot
		}
	}
}

// set adds a pair; of two entries for one pair the later counts.
func (m *mergeTable) set(key uint64, rank, id int32) {
	if m.count*3 >= len(m.slots)*2 {
		m.resize(2 * len(m.slots))
	}
	slot := m.find(key)
	if slot.key == 0 {
		m.count++
	}
	*slot = mergeSlot{key, rank, id}
}

// resize makes room for at least this many slots, never less than are in use.
func (m *mergeTable) resize(slots int) {
	old := m.slots
	log2 := max(4, bits.Len(uint(slots-1)))
	m.multiplier, m.shift = rand.Uint64()|1, uint(64-log2)
	m.slots = make([]mergeSlot, 1<<log2)
	for _, slot := range old {
		if slot.key != 0 {
			*m.find(slot.key) = slot
		}
	}
}
