package residency

import "colibri/backend/container"

// What a plan assumes where it is not told: a prompt of ordinary length, and the engine's usual prefill pass.
const (
	plannedPrompt = 512
	plannedBatch  = 256
)

// LoadOf is what a plan needs to know of a model, from its headers alone, with memory for contextTokens tokens of conversation
// (fewer if the model holds fewer).
func LoadOf(d *container.Description, contextTokens int) Load {
	l := Load{
		Layers: d.Layers, SparseLayers: d.SparseLayers, Experts: d.Experts, PerToken: d.ExpertsPerToken,
		ResidentBytes: d.ResidentBytes, TokenWeights: d.ActiveParameters, Multiplied: d.Multiplied,
		KVBytesPerToken: int64(d.KVBytesPerToken), Context: min(d.Context, contextTokens),
		// Two dozen rows of the width of the model for each token of a pass; see the engine's working memory.
		ScratchBytes: plannedBatch * 24 * 4 * int64(d.Hidden),
		PromptTokens: plannedPrompt, BatchToken: plannedBatch,
	}
	l.TokenBytes = d.MultipliedBytes() - d.BytesPerToken // without the experts' part; their records are padded, by less than 1 %
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
