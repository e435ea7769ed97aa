package residency

import "math"

// Forecast is the store's policy: it keeps what will most probably be used per time that it occupies a slot.
//
// For every expert three running frequencies (of the last 3, 20 and 1,000 turns of its layer) are combined as odds into the probability
// that its layer's next turn uses it, and corrected by which experts its layer has just used: some follow each other from token to token. Layers take turns in a fixed order, so an expert of the layer just computed has
// to be kept for a whole token before it can be of use, one of the next layer only for a moment: the probability is divided by a
// power of the distance. When the same layer comes twice in a row (a prompt's tokens, layer by layer) the distance is short instead.
//
// What decides is frequency with a tie-break by recency, in the proportions that recorded chats of the bundled model asked for
// (see TestForecastOnRecordedChats for figures beside LRU, LFU and the optimum). Also tried, on the same traces: weights learned
// online by logistic regression (1 to 14 % more misses than fixed ones: the next turn is not all that matters), five running
// frequencies instead of three (the same), pairs from layer to layer within a token (0.2, 0.3 and 1 % fewer misses at 10, 25 and 50 %
// of the experts), all rates and weights tuned for each capacity by random search (0.2 to 1 % fewer on other chats), a quarter
// or half of the slots pinned for the history's favourites (2 to 9 % more misses than the history as a beginning, which is how it is used).
type Forecast struct {
	shape     Shape
	frequency [3][]float32 // [layers·experts]
	pairs     []pairs      // by layer; empty where they would take too much memory
	worth     []float32    // logarithm of the probability of use at the layer's next turn; unknown until asked for
	turns     []int        // turns of a layer so far; those that the history stands for included
	order     []int        // a layer's place among those with experts
	sparse    int          // layers with experts seen so far
	now       int          // the layer whose turn was last
	repeated  bool         // it was the same layer's turn before
	penalty   []float64    // by distance, 1 … sparse
}

// unknown is not a logarithm of a probability: those are below 0. Most experts' worth is never asked for between two turns.
const unknown float32 = 1

// rates are the shares of the newest turn in the running frequencies; odds their weights.
var (
	rates = [3]float64{0.3, 0.05, 0.001}
	odds  = [3]float64{0.1, 0.45, 0.25}
)

const (
	distancePower = 0.6
	repeatWorth   = 0.68 // logarithm: an expert of a layer that repeats is worth as much as one at distance 1 that is twice as probable
	// Frequencies are kept off 0 and 1: an expert that was never seen may be the next one.
	leastFrequency, mostFrequency = 0.002, 0.98
)

// NewForecast begins with a history, or with nothing known (nil).
func NewForecast(shape Shape, history *Usage) *Forecast {
	p := &Forecast{shape: shape, pairs: make([]pairs, shape.Layers), worth: make([]float32, shape.Layers*shape.Experts), turns: make([]int, shape.Layers), order: make([]int, shape.Layers), now: -1}
	for i := range p.frequency {
		p.frequency[i] = make([]float32, shape.Layers*shape.Experts)
	}
	for layer := range p.order {
		p.order[layer] = -1
		p.forget(layer)
	}
	if history != nil && history.Shape == shape {
		p.remember(history)
	}
	return p
}

// remember turns counts into frequencies. How many experts a turn uses is not in the history; the most used expert is taken to
// be used every other turn, which puts the others in proportion.
func (p *Forecast) remember(history *Usage) {
	for layer := range p.turns {
		first := p.shape.key(layer, 0)
		uses := history.Uses[first : first+p.shape.Experts]
		var most uint64
		for _, n := range uses {
			most = max(most, n)
		}
		if most < historyLeast {
			continue
		}
		p.turns[layer] = historyTurns
		for e, n := range uses {
			for i := range p.frequency {
				p.frequency[i][first+e] = float32(0.5 * float64(n) / float64(most))
			}
		}
		p.forget(layer)
	}
}

const (
	historyLeast = 20 // uses of a layer's favourite, below which a history says nothing
	historyTurns = 60 // turns of its own that a session needs until it outweighs the history
)

// Use implements Policy.
func (p *Forecast) Use(layer int, experts []int32) {
	if p.order[layer] < 0 {
		p.order[layer] = 0
		p.place()
	}
	p.repeated, p.now = p.now == layer, layer
	p.turns[layer]++
	if bytes := 2 * p.shape.Layers * p.shape.Experts * p.shape.Experts; bytes <= mostPairBytes {
		p.pairs[layer].use(experts, p.shape.Experts)
	}
	first := p.shape.key(layer, 0)
	for i, rate := range rates {
		// While young, the plain average of all turns.
		share := float32(max(rate, 1/float64(p.turns[layer]+1)))
		running := p.frequency[i][first : first+p.shape.Experts]
		for e := range running {
			running[e] -= share * running[e]
		}
		for _, e := range experts {
			running[e] += share
		}
	}
	p.forget(layer)
}

// place numbers the layers that have experts.
func (p *Forecast) place() {
	p.sparse = 0
	for layer, at := range p.order {
		if at >= 0 {
			p.order[layer] = p.sparse
			p.sparse++
		}
	}
	p.penalty = make([]float64, p.sparse+1)
	for distance := 1; distance <= p.sparse; distance++ {
		p.penalty[distance] = distancePower * math.Log(float64(distance))
	}
}

// forget marks what a layer's experts are worth as unknown.
func (p *Forecast) forget(layer int) {
	first := p.shape.key(layer, 0)
	for k := first; k < first+p.shape.Experts; k++ {
		p.worth[k] = unknown
	}
}

func (p *Forecast) forecast(key int) float32 {
	var logit float64
	for i, weight := range odds {
		logit += weight * logOdds(float64(p.frequency[i][key]))
	}
	layer, expert := p.shape.at(key)
	logit += pairWeight * p.pairs[layer].correction(expert, p.shape.Experts, float64(p.frequency[len(rates)-1][key]))
	return float32(-math.Log1p(math.Exp(-logit)))
}

func logOdds(f float64) float64 {
	f = min(max(f, leastFrequency), mostFrequency)
	return math.Log(f / (1 - f))
}

// pairs counts, for a layer, which experts one turn used after which of the turn before. On recorded chats they save 1.6, 3.2 and 4.6 % of the
// misses at 10, 25 and 50 % of the experts, with a weight chosen on other chats.
type pairs struct {
	latest   []int32  // experts of the last turn
	followed []uint16 // [experts]: turns that followed one with the expert
	counts   []uint16 // [experts·experts]: of them, those that used the other
}

const (
	// mostPairBytes is 10 MB for a model of 75 layers of 256 experts; 93 layers of 896 would take 149 MB and do without.
	mostPairBytes = 32 << 20
	pairWeight    = 0.2
	pairPrior     = 4 // turns that the expert's own frequency stands for
)

func (q *pairs) use(experts []int32, of int) {
	if q.counts == nil {
		q.followed, q.counts = make([]uint16, of), make([]uint16, of*of)
	}
	for _, a := range q.latest {
		row := q.counts[int(a)*of:][:of]
		if q.followed[a] == math.MaxUint16 {
			q.followed[a] /= 2
			for b := range row {
				row[b] /= 2
			}
		}
		q.followed[a]++
		for _, b := range experts {
			row[b]++
		}
	}
	q.latest = append(q.latest[:0], experts...)
}

// correction is what the last turn's experts say about an expert of the given frequency, in odds.
func (q *pairs) correction(expert, of int, frequency float64) (sum float64) {
	own := logOdds(frequency)
	for _, a := range q.latest {
		n, turns := float64(q.counts[int(a)*of+expert]), float64(q.followed[a])
		sum += logOdds((n+pairPrior*frequency)/(turns+pairPrior)) - own
	}
	return sum
}

// Worth implements Policy.
func (p *Forecast) Worth(layer int, expert int32) float64 {
	key := p.shape.key(layer, expert)
	if p.worth[key] == unknown {
		p.worth[key] = p.forecast(key)
	}
	w := float64(p.worth[key])
	if p.now < 0 || p.order[layer] < 0 {
		return w
	}
	distance := p.order[layer] - p.order[p.now]
	if distance == 0 && p.repeated {
		return w + repeatWorth
	}
	if distance <= 0 {
		distance += p.sparse
	}
	return w - p.penalty[distance]
}
