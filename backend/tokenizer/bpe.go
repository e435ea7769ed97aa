package tokenizer

// encoder holds what one call of Encode works on.
type encoder struct {
	t       *Tokenizer
	ids     []int32
	pieces  []span
	symbols []symbol
	heap    []candidate
	scratch []span
}

// words splits normalised text without added tokens and encodes its words.
func (e *encoder) words(text string) error {
	if text == "" {
		return nil
	}
	e.pieces = append(e.pieces[:0], span{0, len(text)})
	for _, s := range e.t.steps {
		var err error
		e.scratch, err = s.split(text, e.pieces, e.scratch[:0])
		if err != nil {
			return err
		}
		e.pieces, e.scratch = e.scratch, e.pieces
	}
	for _, p := range e.pieces {
		word := text[p.begin:p.end]
		if e.t.addPrefixSpace && word[0] != ' ' {
			word = " " + word
		}
		e.word(word)
	}
	return nil
}

// symbol is one token of a word being merged, in a list that shrinks.
type symbol struct {
	id         int32 // −1: merged into the one before
	prev, next int32 // indices; −1 at the ends
}

// candidate is a pair that could be merged. It is stale once either side has changed.
type candidate struct {
	rank, at    int32 // the order of the heap; at is the index of the left symbol
	left, right int32
	id          int32
}

// word appends the ids of one word. The pair of lowest rank, and of these the leftmost, is merged until none is left; a
// heap finds it, so that a word of a million letters costs n log n and not n².
func (e *encoder) word(word string) {
	t := e.t
	if t.ignoreMerges {
		if id, ok := t.ids[word]; ok {
			e.ids = append(e.ids, id)
			return
		}
	}
	e.symbols = e.symbols[:0]
	e.heap = e.heap[:0]
	for i := range len(word) {
		e.symbols = append(e.symbols, symbol{id: t.byteIDs[word[i]], prev: int32(i) - 1, next: int32(i) + 1})
	}
	e.symbols[len(word)-1].next = -1
	for i := range len(word) - 1 {
		e.offer(int32(i), int32(i)+1)
	}
	for i := len(e.heap)/2 - 1; i >= 0; i-- {
		e.sink(i)
	}
	for len(e.heap) > 0 {
		c := e.heap[0]
		last := len(e.heap) - 1
		e.heap[0] = e.heap[last]
		e.heap = e.heap[:last]
		e.sink(0)

		left := &e.symbols[c.at]
		if left.id != c.left || left.next < 0 || e.symbols[left.next].id != c.right {
			continue
		}
		gone := &e.symbols[left.next]
		gone.id = -1
		left.id = c.id
		left.next = gone.next
		if left.next >= 0 {
			e.symbols[left.next].prev = c.at
			e.offer(c.at, left.next)
			e.rise(len(e.heap) - 1)
		}
		if left.prev >= 0 {
			e.offer(left.prev, c.at)
			e.rise(len(e.heap) - 1)
		}
	}
	for i := int32(0); i >= 0; i = e.symbols[i].next {
		e.ids = append(e.ids, e.symbols[i].id)
	}
}

// offer appends the pair to the heap's slice if it can be merged; the caller restores the heap's order.
func (e *encoder) offer(left, right int32) {
	l, r := e.symbols[left].id, e.symbols[right].id
	if m := e.t.merges.find(pairKey(l, r)); m.key != 0 {
		e.heap = append(e.heap, candidate{m.rank, left, l, r, m.id})
	}
}

func (c *candidate) before(d *candidate) bool {
	return c.rank < d.rank || c.rank == d.rank && c.at < d.at
}

func (e *encoder) sink(i int) {
	h := e.heap
	for {
		child := 2*i + 1
		if child >= len(h) {
			return
		}
		if child+1 < len(h) && h[child+1].before(&h[child]) {
			child++
		}
		if !h[child].before(&h[i]) {
			return
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
}

func (e *encoder) rise(i int) {
	h := e.heap
	for i > 0 {
		parent := (i - 1) / 2
		if !h[i].before(&h[parent]) {
			return
		}
		h[i], h[parent] = h[parent], h[i]
		i = parent
	}
}
