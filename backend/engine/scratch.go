package engine

import (
	"colibri/backend/compute"
	"colibri/backend/container"
)

// headRows is the number of rows whose logits are in memory at once: a draft of maxDraft tokens is verified in one
// call, longer lists (Eval) go through in parts.
const headRows = 8

// scratch is the working memory of one forward pass. Its size is known before anything is loaded.
type scratch struct {
	rows int // the longest batch

	x, normed, shared []float32 // [rows, hidden]
	output            []float32 // [rows·perToken, hidden]
	gates             []float32 // [rows, perToken]
	chosen            []int32   // [rows, perToken]
	cos, sin          []float32 // [rows, ropeDim/2]
	selection         compute.Selection
	hidden            []float32 // [rows, hidden]: the main model's normalised output
	headIn, headNorm  []float32 // [headRows, hidden]
	logits            []float32 // [headRows, vocabulary]
	guessState        []float32 // [fewRows, hidden]
	guessScores       []float32 // [fewRows, experts]
	joined            []float32 // [rows, 2·hidden]: input of a multi-token-prediction layer's projection
}

// measureScratch is the size of the working memory for rows rows.
func measureScratch(c *container.Config, rows int) int64 {
	var measured scratch
	measure := carver{measureOnly: true}
	measured.carve(&measure, c, rows)
	return roundUp(measure.used, pageBytes)
}

// carve assigns the arrays.
func (s *scratch) carve(c *carver, config *container.Config, rows int) {
	d, k := config.Hidden, config.MoE.PerToken
	s.rows = rows
	s.x, s.normed, s.shared = c.floats(rows*d), c.floats(rows*d), c.floats(rows*d)
	s.output, s.gates, s.chosen = c.floats(rows*k*d), c.floats(rows*k), c.ints(rows*k)
	half := len(config.RoPE.InverseFrequencies)
	s.cos, s.sin = c.floats(rows*half), c.floats(rows*half)
	if index := &config.Attention.Index; index.Heads > 0 {
		s.selection = compute.Selection{Counts: c.ints(rows), Positions: c.ints(rows * index.TopK), Tied: c.ints(rows)}
	}
	s.hidden = c.floats(rows * d)
	s.headIn, s.headNorm = c.floats(headRows*d), c.floats(headRows*d)
	s.logits = c.floats(headRows * config.Vocabulary)
	s.guessState, s.guessScores = c.floats(fewRows*d), c.floats(fewRows*config.MoE.Experts)
	if config.MTPLayers > 0 {
		s.joined = c.floats(rows * 2 * d)
	}
}
