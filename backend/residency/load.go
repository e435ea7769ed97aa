package residency

import (
	"maps"

	"colibri/backend/container"
)

// plannedPrompt is the prompt of ordinary length that a plan assumes where it is not told.
const plannedPrompt = 512

// LoadOf is what a plan needs to know of a model, from its headers alone, with memory for contextTokens tokens of conversation
// (fewer if the model holds fewer).
func LoadOf(d *container.Description, contextTokens int) Load {
	l := Load{
		Layers: d.Layers, SparseLayers: d.SparseLayers, Experts: d.Experts, PerToken: d.ExpertsPerToken,
		ResidentBytes: d.ResidentBytes, Multiplied: d.Multiplied, Prompted: maps.Clone(d.Multiplied), Routed: d.Routed, Weights: map[string]int64{},
		AttentionOps: d.AttentionOps, IndexTopK: d.IndexTopK,
		KVBytesPerToken: int64(d.KVBytesPerToken), Context: min(d.Context, contextTokens),
		// Three dozen rows of the width of the model; the engine, which knows all widths, has 36 to 38 for the shapes that it was measured with.
		RowBytes: 36 * 4 * int64(d.Hidden), PromptTokens: plannedPrompt,
	}
	l.TokenBytes = d.MultipliedBytes() - d.BytesPerToken // without the experts' part; their records are padded, by less than 1 %
	l.TokenWeights = d.ActiveParameters - int64(d.Vocabulary)*int64(d.Hidden)
	for _, f := range d.Formats {
		switch f.Class {
		case container.SharedExperts.String():
			l.SharedBytes = f.Bytes
		case container.Embeddings.String():
			// The output head has as many weights as the embeddings, in their format.
			if encoding, err := container.ParseEncoding(f.Formats[0]); err == nil {
				l.Prompted[f.Formats[0]] -= encoding.DataBytes(d.Vocabulary, d.Hidden) + 4*encoding.ScaleCount(d.Vocabulary, d.Hidden)
			}
		}
	}
	for name, bytes := range l.Prompted {
		if encoding, err := container.ParseEncoding(name); err == nil {
			const side = 2048 // scales weigh the same in all usual shapes
			l.Weights[name] = bytes * side * side / (encoding.DataBytes(side, side) + 4*encoding.ScaleCount(side, side))
		}
	}
	var bytes, count int64
	for _, s := range d.ExpertSizes {
		bytes += s.Bytes * int64(s.Count)
		count += int64(s.Count)
	}
	if count > 0 {
		l.ExpertBytes = bytes / count
	}
	return l
}

// NeedBytes is the least memory a model runs in: what always stays, and the experts of one token in one layer.
func (l *Load) NeedBytes() int64 {
	return l.ResidentBytes + shortestPass*l.RowBytes + l.KVBytesPerToken*int64(l.Context) + int64(l.PerToken)*l.ExpertBytes
}
