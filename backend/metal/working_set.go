package metal

// WorkingSetBytes is how much memory the system recommends that the device hold at once; the engine keeps its limit below it.
func (b *Backend) WorkingSetBytes() int64 { return int64(b.Counters().WorkingSet) }
