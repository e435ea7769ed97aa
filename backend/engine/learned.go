package engine

import (
	"fmt"
	"path/filepath"
	"runtime"
	"sync"

	"colibri/backend/residency"
)

// learned is the size of the experts' memory that the governor found best on this machine, in this session and in earlier ones. The zero
// value remembers nothing.
type learned struct {
	path, key string

	mu      sync.Mutex
	sizes   *residency.Sizes
	changed bool
}

func (l *learned) best() residency.Best {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sizes == nil {
		return residency.Best{}
	}
	return l.sizes.Best[l.key]
}

// settled learns the size at which the governor rests. Where that is all that the limit allows there is nothing to learn: another limit will be
// another size.
func (l *learned) settled(best residency.Best, ceilingBytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sizes == nil {
		return
	}
	known := l.sizes.Best[l.key]
	if known == best {
		return
	}
	switch {
	case best.SlotBytes < ceilingBytes-ceilingBytes/16:
		l.sizes.Put(l.key, best)
	case known.SlotBytes > 0:
		delete(l.sizes.Best, l.key)
	default:
		return
	}
	l.changed = true
}

// recall reads what earlier sessions left beside the model. What is damaged or another model's is left alone, and the user is told.
func (m *Model) recall(dir string, shape residency.Shape) {
	var notice string
	m.history, notice = residency.ReadUsage(filepath.Join(dir, residency.UsageFile), shape, m.config.Layers, m.config.Family)
	m.recorder.Notice(notice)
	l := &m.learned
	l.path = filepath.Join(dir, residency.SizesFile)
	memory := int64(0)
	if state, err := residency.ReadMemory(); err == nil { // otherwise the machine goes by its processor alone
		memory = state.TotalBytes
	}
	l.key = residency.SizeKey(m.identity, fmt.Sprintf("%s/%s, %s, %d CPUs, %d bytes", runtime.GOOS, runtime.GOARCH, m.backend.Name(), runtime.NumCPU(), memory))
	l.sizes, notice = residency.ReadSizes(l.path)
	m.recorder.Notice(notice)
}

// remember writes what was used and learned beside the model. Nothing depends on it but the speed of the next session: a folder that cannot be
// written to has neither.
func (m *Model) remember() {
	if m.history == nil {
		return
	}
	m.history.Add(m.recorder.Atlas().Heat)
	_ = m.history.Write(filepath.Join(filepath.Dir(m.learned.path), residency.UsageFile), m.config.Layers, m.config.Family)
	if m.learned.changed {
		_ = m.learned.sizes.Write(m.learned.path)
	}
}
