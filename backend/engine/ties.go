package engine

import (
	"math"

	"colibri/backend/compute"
)

// Where an indexer chooses among equal scores (all its ReLUs closed: exactly 0), the model's definition leaves the choice open, and its
// reference implementation decides by the length of the whole text (see compute.Row.TieSpan): with every token that is added, an
// earlier position may attend to others than before. Rows in a cache stay as they were. In a short text a session therefore computes the
// rows from the first such choice on anew for every token, and generates what evaluating the whole text would.
//
// That costs a prefill per token, so it ends with mostTiedText. Only models made for tests select within so few positions; where
// published ones select (2048 positions and more), equal scores at the boundary have not been seen, and a cached row keeps its choice.

// mostTiedText is the longest text, in tokens, that is computed anew.
const mostTiedText = 512

// noTie is greater than every position.
const noTie = math.MaxInt

// firstTie is the lowest position whose row chose among equal scores.
func firstTie(tied []int32, rows []compute.Row) int {
	first := noTie
	for r, row := range rows {
		if tied[r] != 0 {
			first = min(first, row.Position)
		}
	}
	return first
}

// indexes says whether a layer makes a selection.
func (m *Model) indexes(layer int) bool {
	index := &m.config.Attention.Index
	return index.Heads > 0 && index.Full[layer]
}

// standing is how many of the session's rows are what they would be in a text of textTokens tokens that begins with the session's.
func (s *Session) standing(textTokens int) int {
	if textTokens > mostTiedText {
		return len(s.tokens)
	}
	return min(len(s.tokens), s.tied)
}
