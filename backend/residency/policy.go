package residency

// Policy says what the experts in memory are worth. It is a pure function of the uses it has been told: it reads no clock,
// holds no lock, and can be replayed over a recorded trace (Replay). The caller evicts the unleased expert of least
// worth; ties go to the lower layer, then the lower expert.
type Policy interface {
	// Use tells that the router chose experts in layer, once for each token, layers in the order the model runs them.
	Use(layer int, experts []int32)
	// Worth ranks an expert against others at this moment; it is comparable only until the next Use.
	Worth(layer int, expert int32) float64
}

// Shape is a model as policies see it: Layers includes those without routed experts, so that layer numbers are the model's own.
type Shape struct {
	Layers, Experts int
}

func (s Shape) key(layer int, expert int32) int { return layer*s.Experts + int(expert) }

// LRU is the yardstick "least recently used".
type LRU struct {
	shape Shape
	clock float64
	last  []float64
}

func NewLRU(shape Shape) *LRU {
	return &LRU{shape: shape, last: make([]float64, shape.Layers*shape.Experts)}
}

func (p *LRU) Use(layer int, experts []int32) {
	p.clock++
	for _, e := range experts {
		p.last[p.shape.key(layer, e)] = p.clock
	}
}

func (p *LRU) Worth(layer int, expert int32) float64 { return p.last[p.shape.key(layer, expert)] }

// LFU is the yardstick "least frequently used", ties to the least recent: counts never age and outlive eviction.
type LFU struct {
	lru   LRU
	count []float64
}

func NewLFU(shape Shape) *LFU {
	return &LFU{lru: *NewLRU(shape), count: make([]float64, shape.Layers*shape.Experts)}
}

func (p *LFU) Use(layer int, experts []int32) {
	p.lru.Use(layer, experts)
	for _, e := range experts {
		p.count[p.lru.shape.key(layer, e)]++
	}
}

// Worth adds recency as a fraction below one use: clock stays below 2^40 for centuries of tokens.
func (p *LFU) Worth(layer int, expert int32) float64 {
	return p.count[p.lru.shape.key(layer, expert)] + p.lru.Worth(layer, expert)/(1<<40)
}
