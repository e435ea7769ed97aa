package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// segment is the part of a batch that belongs to one sequence: ids follow the positions [0, start) of its cache.
type segment struct {
	cache      *kvCache
	start      int
	ids        []int32
	textTokens int // the length of the text that ties are settled by (see ties.go), 0: it ends with each of ids
}

// Route receives the routed experts of one token in one sparse layer, in ascending order. The slice is lent.
type Route func(position, layer int, experts []int32)

// from is a route that is told of positions from first on.
func (r Route) from(first int) Route {
	if r == nil {
		return nil
	}
	return func(position, layer int, experts []int32) {
		if position >= first {
			r(position, layer, experts)
		}
	}
}

// forward runs the main layers for a batch. Afterwards m.scratch.x holds the residual stream of its rows from the first wanted one on, in the order
// of the batch, and the caches hold the new positions. When it fails, the caches' contents beyond each segment's start are void.
func (m *Model) forward(ctx context.Context, batch []segment, wanted int, route Route) error {
	rows, err := m.beginBatch(batch)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := m.backend.Embed(&m.weights.embedding, m.ids, m.scratch.x[:rows*m.config.Hidden]); err != nil {
		return fmt.Errorf("embedding: %w", err)
	}
	m.times.other += time.Since(began)
	m.tied = noTie
	for l := range m.config.Layers {
		first := 0
		if l == m.config.Layers-1 {
			first = wanted // earlier layers' outputs go into the next one's caches
		}
		if err := m.layer(ctx, l, batch, first, route); err != nil {
			return err
		}
		if m.indexes(l) {
			m.tied = min(m.tied, firstTie(m.scratch.selection.Tied[first:], m.rows[first:]))
		}
	}
	return nil
}

// beginBatch lays out the rows of a batch and their rotations.
func (m *Model) beginBatch(batch []segment) (int, error) {
	m.rows, m.ids = m.rows[:0], m.ids[:0]
	for i, s := range batch {
		for j := range s.ids {
			position := s.start + j
			m.rows = append(m.rows, compute.Row{Position: position, Cache: i, TieSpan: max(s.textTokens, position+1)})
		}
		m.ids = append(m.ids, s.ids...)
	}
	if len(m.rows) > m.scratch.rows {
		return 0, fmt.Errorf("a batch of %d tokens is longer than the %d the working memory was made for", len(m.rows), m.scratch.rows)
	}
	half := len(m.config.RoPE.InverseFrequencies)
	for r, row := range m.rows {
		rotations(&m.config.RoPE, row.Position, m.scratch.cos[r*half:][:half], m.scratch.sin[r*half:][:half])
	}
	return len(m.rows), nil
}

// layer runs one layer on the rows of the batch that beginBatch laid out. Rows before first only get their entries in the caches.
func (m *Model) layer(ctx context.Context, index int, batch []segment, first int, route Route) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, c := &m.scratch, m.config
	d, k := c.Hidden, c.MoE.PerToken
	m.caches = m.caches[:0]
	for _, segment := range batch {
		m.caches = append(m.caches, segment.cache.layers[index].view)
	}
	began := time.Now()
	if first > 0 {
		m.prepareCall(index, 0, first)
		m.call.CachesOnly = true
		if err := m.backend.Layer(&m.call); err != nil {
			return fmt.Errorf("layer %d: %w", index, err)
		}
	}
	rows := len(m.rows) - first
	if rows == 0 {
		m.times.attention += time.Since(began)
		return nil
	}
	m.prepareCall(index, first, len(m.rows))
	m.call.Normed, m.call.Shared = s.normed[:rows*d], s.shared[:rows*d]
	if c.Sparse[index] {
		m.call.Experts, m.call.Gates = s.chosen[:rows*k], s.gates[:rows*k]
		m.call.SharedLater = m.streams
	}
	if err := m.backend.Layer(&m.call); err != nil {
		return fmt.Errorf("layer %d: %w", index, err)
	}
	m.times.attention += time.Since(began)
	if c.Sparse[index] {
		if route != nil {
			for r, row := range m.call.Rows {
				route(row.Position, index, m.call.Experts[r*k:][:k])
			}
		}
		if err := m.routedExperts(ctx, index, rows); err != nil {
			return err
		}
	}
	began = time.Now()
	bad := firstNotFinite(m.call.X)
	m.times.other += time.Since(began)
	if bad >= 0 {
		return &NumberError{Layer: index, Position: m.call.Rows[bad/d].Position}
	}
	return nil
}

// prepareCall lays out m.call for rows first … end-1 of the batch.
func (m *Model) prepareCall(layer, first, end int) {
	s, d, half := &m.scratch, m.config.Hidden, len(m.config.RoPE.InverseFrequencies)
	if all := &s.selection; len(all.Counts) > 0 {
		topK := m.config.Attention.Index.TopK
		m.selection = compute.Selection{Counts: all.Counts[first:end], Positions: all.Positions[first*topK : end*topK], Tied: all.Tied[first:end]}
	}
	m.call = compute.LayerCall{
		Config: m.config, Index: layer, Weights: &m.weights.layers[layer],
		Rows: m.rows[first:end], Caches: m.caches,
		Cos: s.cos[first*half : end*half], Sin: s.sin[first*half : end*half], Selection: &m.selection,
		X: s.x[first*d : end*d],
	}
}

// NumberError reports that a layer produced something that is not a finite number: damaged weights, or a fault of the processor.
type NumberError struct {
	Layer    int // −1: the output head
	Position int
}

func (e *NumberError) Error() string {
	where := fmt.Sprintf("layer %d", e.Layer)
	if e.Layer < 0 {
		where = "the output head"
	}
	return fmt.Sprintf("%s produced a value that is not a finite number at position %d; the answer ends here. Check the model's files (colibri inspect), and try the cpu backend if another was in use", where, e.Position)
}

// firstNotFinite is the index of the first NaN or infinity, or −1. Zero times a number is zero, times anything else NaN:
// the common case is one multiply and add per value.
func firstNotFinite(x []float32) int {
	var a, b, c, d float32
	i := 0
	for ; i+4 <= len(x); i += 4 {
		a += x[i] * 0
		b += x[i+1] * 0
		c += x[i+2] * 0
		d += x[i+3] * 0
	}
	for _, v := range x[i:] {
		a += v * 0
	}
	if a+b+c+d == 0 {
		return -1
	}
	return slices.IndexFunc(x, func(v float32) bool { return v*0 != 0 })
}

// routedExperts computes the experts the router chose in m.call and adds them to the residual stream. Shared experts and those in
// memory compute while the others are read; the order of arrival does not matter, because every result has its own row of
// output and Combine sums them in ascending order.
func (m *Model) routedExperts(ctx context.Context, layer, rows int) error {
	s, c := &m.scratch, m.config
	d, k := c.Hidden, c.MoE.PerToken
	ids := m.groups.group(m.call.Experts, k, c.MoE.Experts)
	var err error
	if rows > fewRows {
		err = m.sweptExperts(ctx, layer, ids, rows)
	} else {
		// Half of what can be held: the governor may halve it between this question and the request.
		for part := range slices.Chunk(ids, max(m.config.MoE.PerToken, m.experts.AtOnce(layer)/2)) {
			if err = m.heldExperts(ctx, layer, part, rows); err != nil {
				break
			}
		}
	}
	if err != nil {
		return fmt.Errorf("experts of layer %d: %w", layer, err)
	}
	began := time.Now()
	m.combine = compute.CombineCall{
		Rows: rows, PerToken: k, Hidden: d,
		Gates: m.call.Gates, Output: s.output[:rows*k*d], Shared: m.call.Shared, X: m.call.X,
	}
	err = m.backend.Combine(&m.combine)
	m.times.experts += time.Since(began)
	if err != nil {
		return fmt.Errorf("layer %d: %w", layer, err)
	}
	return nil
}

// sharedExperts computes the shared experts of m.call, once, if they were left for the time in which reads are under way.
func (m *Model) sharedExperts() error {
	if !m.call.SharedLater {
		return nil
	}
	began := time.Now()
	err := m.backend.SharedExperts(&m.call)
	m.call.SharedLater = false
	m.times.attention += time.Since(began)
	return err
}

// fewRows is the longest batch that belongs to decoding: a token and its drafts. Longer ones are parts of a prompt, and
// go through a layer's experts in the order of the disk.
const fewRows = 1 + mostDrafts

// heldExperts computes experts that can be held together: those in memory at once, the others as they land.
func (m *Model) heldExperts(ctx context.Context, layer int, ids []int32, rows int) (err error) {
	leases, err := m.experts.Acquire(ctx, layer, ids)
	if err != nil {
		return err
	}
	// Memory is given back only when no processor works with it any more, whatever happened.
	defer func() {
		err = errors.Join(err, m.waitForExperts())
		leases.Release()
	}()
	if err := errors.Join(m.sharedExperts(), m.guessNext(layer, rows)); err != nil {
		return err
	}
	landed := leases.Ready()
	for delivered := 0; ; {
		if err := m.beginExperts(landed, rows); err != nil {
			return err
		}
		if delivered += len(landed); delivered >= len(ids) {
			return nil
		}
		began := time.Now()
		landed, err = leases.Next(ctx)
		m.times.waiting += time.Since(began)
		if err != nil {
			return err
		}
		if len(landed) == 0 {
			return fmt.Errorf("%d of %d were delivered", delivered, len(ids))
		}
	}
}

// sweptExperts computes a prompt's experts in whatever order they come, a few at a time.
func (m *Model) sweptExperts(ctx context.Context, layer int, ids []int32, rows int) error {
	sweep, err := m.experts.Sweep(layer, ids)
	if err != nil {
		return err
	}
	defer sweep.Release()
	delivered := 0
	for {
		began := time.Now()
		landed, err := sweep.Next(ctx)
		m.times.waiting += time.Since(began)
		if err != nil {
			return err
		}
		if len(landed) == 0 {
			break
		}
		delivered += len(landed)
		// Reads were begun by the first Next.
		if err := errors.Join(m.sharedExperts(), m.beginExperts(landed, rows), m.waitForExperts()); err != nil {
			return err
		}
	}
	if delivered != len(ids) {
		return fmt.Errorf("%d of %d were delivered", delivered, len(ids))
	}
	return nil
}

// waitForExperts waits for everything that beginExperts began.
func (m *Model) waitForExperts() error {
	began := time.Now()
	var err error
	for _, p := range m.pending {
		err = errors.Join(err, p.Wait())
	}
	m.pending = m.pending[:0]
	m.times.experts += time.Since(began)
	return err
}

func (m *Model) beginExperts(landed []Lease, rows int) error {
	if len(landed) == 0 {
		return nil
	}
	s, c := &m.scratch, m.config
	began := time.Now()
	call := m.calls.next(len(m.pending))
	call.Hidden, call.Inner = c.Hidden, c.MoE.Inner
	call.Input, call.Output = s.normed[:rows*c.Hidden], s.output[:rows*c.MoE.PerToken*c.Hidden]
	call.Work = call.Work[:0]
	for _, lease := range landed {
		inRows, outSlots := m.groups.of(lease.Expert)
		call.Work = append(call.Work, compute.ExpertWork{Gate: lease.Gate, Up: lease.Up, Down: lease.Down, Rows: inRows, Slots: outSlots})
	}
	pending, err := m.backend.MoEBegin(call)
	m.times.experts += time.Since(began)
	if err != nil {
		return err
	}
	m.pending = append(m.pending, pending)
	return nil
}

// callPool keeps one MoECall for each that may be under way at once: a backend owns a call until it was waited for.
type callPool []*compute.MoECall

func (p *callPool) next(underWay int) *compute.MoECall {
	for len(*p) <= underWay {
		*p = append(*p, new(compute.MoECall))
	}
	return (*p)[underWay]
}

// expertGroups sorts the rows of a batch by expert.
type expertGroups struct {
	start       []int32 // [experts+1]: where an expert's rows begin
	rows, slots []int32
	ids         []int32
}

// group takes chosen experts [rows, perToken] and gives the ids in use, ascending. A token's k-th expert gets output
// row token·perToken+k, wherever and whenever it is computed.
func (g *expertGroups) group(chosen []int32, perToken, experts int) []int32 {
	g.start = resize(g.start, experts+1)
	clear(g.start)
	for _, e := range chosen {
		g.start[e+1]++
	}
	g.ids = g.ids[:0]
	for e := range experts {
		if g.start[e+1] > 0 {
			g.ids = append(g.ids, int32(e))
		}
		g.start[e+1] += g.start[e]
	}
	g.rows, g.slots = resize(g.rows, len(chosen)), resize(g.slots, len(chosen))
	for slot, e := range chosen {
		at := g.start[e]
		g.rows[at], g.slots[at] = int32(slot/perToken), int32(slot)
		g.start[e]++ // now the end; of() looks one back
	}
	return g.ids
}

// of gives the rows that chose an expert and the output rows of their results.
func (g *expertGroups) of(expert int32) (rows, slots []int32) {
	start, end := int32(0), g.start[expert]
	if expert > 0 {
		start = g.start[expert-1]
	}
	return g.rows[start:end], g.slots[start:end]
}

func resize(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// headOf runs an output head, or some of its first rows, with the norm before it, on some rows of the residual stream (headRows at most). The result,
// and m.scratch.headNorm with the normalised rows, are valid until the next call.
func (m *Model) headOf(norm []float32, head *container.Block, rows []int) ([]float32, error) {
	s, d := &m.scratch, m.config.Hidden
	began := time.Now()
	defer func() { m.times.other += time.Since(began) }()
	for i, r := range rows {
		copy(s.headIn[i*d:][:d], s.x[r*d:][:d])
	}
	n := len(rows)
	m.headCall = compute.HeadCall{
		Rows: n, Norm: norm, Epsilon: m.config.NormEpsilon, Head: head,
		X: s.headIn[:n*d], Normed: s.headNorm[:n*d], Logits: s.logits[:n*head.Rows],
	}
	if err := m.backend.Head(&m.headCall); err != nil {
		return nil, fmt.Errorf("output head: %w", err)
	}
	return m.headCall.Logits, nil
}

// logitsOf is headOf for the main layers.
func (m *Model) logitsOf(rows []int) ([]float32, error) {
	return m.headOf(m.weights.finalNorm, &m.weights.head, rows)
}
