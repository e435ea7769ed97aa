package residency

import (
	"fmt"

	"colibri/backend/container"
)

// Registrar is what the arena needs of a backend: to be told of memory before it is used and before it is freed.
type Registrar interface {
	Register(memory []byte) error
	Unregister(memory []byte) error
}

// slotState is what a slot holds. A slot with references is leased: it is neither evicted nor freed.
type slotState uint8

const (
	empty   slotState = iota
	loading           // key is set, load is set
	ready             // key is set
)

type slot struct {
	memory  []byte
	mapping *mapping
	state   slotState
	key     int // layer·experts+expert
	refs    int
	load    *load
	transit bool // brought by a sweep that had to evict for it: the sweep's next expert goes here
	guessed bool // brought by a speculative read and not used yet
}

// idle says that the slot can be taken for another expert.
func (s *slot) idle() bool { return s.state == ready && s.refs == 0 }

// mapping is one anonymous mapping, registered with the backend, cut into equal slots.
type mapping struct {
	memory   []byte // as mapped
	slots    []*slot
	retiring bool // being emptied: its slots are not handed out any more
}

func (m *mapping) busy() bool {
	for _, s := range m.slots {
		if s.refs > 0 || s.state == loading {
			return true
		}
	}
	return false
}

// class is the slots of one layout: experts of equal layout are interchangeable in memory.
type class struct {
	layout     container.ExpertLayout
	experts    int // experts of the model that have this layout
	planned    int // slots it may have under the present limit
	target     int // the same, or fewer after an allocation failed
	perMapping int // slots in a full mapping
	mappings   []*mapping
	free       []*slot // empty ones, not retiring
	transit    int     // slots with transit set
}

// live is the number of slots in use or usable, retiring ones excluded.
func (c *class) live() int {
	n := 0
	for _, m := range c.mappings {
		if !m.retiring {
			n += len(m.slots)
		}
	}
	return n
}

// growable is the number of slots that may still be mapped.
func (c *class) growable() int { return max(c.target-c.live(), 0) }

// arena is the classes and the calls that create and destroy their memory. It is guarded by the store's lock, except that
// retire unregisters and unmaps a mapping that is already out of reach without it.
type arena struct {
	classes []*class
	backend Registrar
	alloc   func(bytes int64) ([]byte, error) // mapMemory, replaced in tests
	release func([]byte) error                // unmapMemory
	bytes   int64                             // mapped now
}

// grow maps and registers one more mapping of a class, of at most its growable slots. On failure everything is as before.
func (a *arena) grow(c *class) error {
	n := min(c.perMapping, c.growable())
	bytes := int64(n) * c.layout.SlotBytes
	memory, err := a.alloc(bytes)
	if err != nil {
		return fmt.Errorf("no memory for %d more experts (%s): %w", n, formatBytes(bytes), err)
	}
	if err := a.backend.Register(memory); err != nil {
		if unmapErr := a.release(memory); unmapErr != nil {
			err = fmt.Errorf("%w; and giving the memory back failed: %w", err, unmapErr)
		}
		return fmt.Errorf("the backend refused %s of expert memory: %w", formatBytes(bytes), err)
	}
	m := &mapping{memory: memory}
	for i := range n {
		at := int64(i) * c.layout.SlotBytes
		end := at + c.layout.SlotBytes
		m.slots = append(m.slots, &slot{memory: memory[at:end:end], mapping: m})
	}
	c.mappings = append(c.mappings, m)
	// Handed out from the end of the list: the lowest address first.
	for i := n - 1; i >= 0; i-- {
		c.free = append(c.free, m.slots[i])
	}
	a.bytes += bytes
	return nil
}

// detach takes an empty mapping out of its class; nothing refers to it afterwards but the caller, who passes it to destroy.
func (c *class) detach(m *mapping) {
	for i := range c.mappings {
		if c.mappings[i] == m {
			c.mappings = append(c.mappings[:i], c.mappings[i+1:]...)
			return
		}
	}
}

// destroy unregisters, then unmaps. If the backend will not let go, the memory stays mapped: freeing it under a GPU
// that may still read it would be worse than keeping it.
func (a *arena) destroy(m *mapping) error {
	if err := a.backend.Unregister(m.memory); err != nil {
		return fmt.Errorf("the backend keeps %s of expert memory: %w", formatBytes(int64(len(m.memory))), err)
	}
	if err := a.release(m.memory); err != nil {
		return fmt.Errorf("giving %s of expert memory back failed: %w", formatBytes(int64(len(m.memory))), err)
	}
	return nil
}

// divide gives each class its number of slots out of bytes: all experts where they fit, otherwise at least least (or all it
// has) and the rest in proportion to the bytes of its experts, which is what a token touches of it.
func divide(classes []*class, bytes int64, least int) ([]int, error) {
	slots := make([]int, len(classes))
	var floor, wanted int64
	for i, c := range classes {
		slots[i] = min(max(least, 1), c.experts)
		floor += int64(slots[i]) * c.layout.SlotBytes
		wanted += int64(c.experts-slots[i]) * c.layout.SlotBytes
	}
	if floor > bytes {
		return nil, fmt.Errorf("the experts need at least %s (%d of each size at once), and %s are left for them",
			formatBytes(floor), max(least, 1), formatBytes(max(bytes, 0)))
	}
	left := bytes - floor
	for i, c := range classes {
		more := int64(c.experts-slots[i]) * c.layout.SlotBytes
		if more == 0 {
			continue
		}
		share := more
		if wanted > left {
			// left·more can exceed 63 bits for models of terabytes: go through float64 and keep below.
			share = min(more, int64(float64(left)*(float64(more)/float64(wanted))))
		}
		slots[i] += int(share / c.layout.SlotBytes)
	}
	return slots, nil
}

// formatBytes writes a size for people, in decimal units as macOS does.
func formatBytes(n int64) string {
	const units = "kMGTP"
	if n < 1000 {
		return fmt.Sprintf("%d bytes", n)
	}
	f, u := float64(n)/1000, 0
	for f >= 999.95 && u < len(units)-1 {
		f, u = f/1000, u+1
	}
	return fmt.Sprintf("%.1f %cB", f, units[u])
}
