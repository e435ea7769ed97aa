// Package compute is the contract between the engine and the processors that calculate for it. It holds the operations of
// one forward pass as plain descriptions (weights as blocks, activations as float32 rows, caches as views) and
// the interface that the CPU and the Metal backend implement. It knows nothing of files, of expert residency, of tokens or of sampling.
//
// Conventions: activations are row-major float32 [rows, width]; weights are [outputs, inputs]. All memory that a call names is
// anonymous, page-aligned memory outside Go's heap that was given to Register before, so that a GPU can reach it
// by address; rows and index lists may be Go memory and are copied. Results do not depend on thread count, on timing, or on which
// experts were submitted first: every sum has one fixed order.
package compute

import "colibri/backend/container"

// Backend executes the operations of a forward pass. One goroutine drives a backend at a time; Register and Unregister may come
// from others meanwhile.
type Backend interface {
	// Name is "cpu" or "metal", with the device or the instruction set for people: "cpu (AVX2)".
	Name() string
	// Supports says whether the backend has kernels for an encoding. The engine asks at load, for every weight.
	Supports(encoding container.Encoding) bool
	// Register makes memory usable in calls. Base and length are multiples of 16 KiB.
	Register(memory []byte) error
	// Unregister takes memory back before it is freed. It returns once nothing in flight uses it.
	Unregister(memory []byte) error

	// Embed writes row ids[i] of the table to x[i].
	Embed(table *container.Block, ids []int32, x []float32) error
	// Layer runs a layer up to the point where expert ids are known (see LayerCall), and waits for it.
	Layer(call *LayerCall) error
	// SharedExperts computes Shared where Layer left it, of a call with SharedLater.
	SharedExperts(call *LayerCall) error
	// MoEBegin starts the routed experts in call and returns at once where the processor works on its own. Several may be
	// under way; each must be waited for. The call's memory belongs to the backend until then.
	MoEBegin(call *MoECall) (Pending, error)
	// Combine adds the experts' outputs to the residual stream once all pending calls of the layer are done.
	Combine(call *CombineCall) error
	// Head computes logits.
	Head(call *HeadCall) error
	// Linear computes y[i] = W·x[i] for rows rows.
	Linear(w *container.Block, x, y []float32, rows int) error
	// Normalise computes y[i] = x[i] · weight / sqrt(mean(x[i]²)+epsilon) for rows rows; x and y may be the same.
	Normalise(weight []float32, epsilon float32, x, y []float32, rows int) error

	// ScratchBytes is the backend's own working memory for calls of up to rows rows and contexts of up to positions.
	ScratchBytes(config *container.Config, rows, positions int) int64
	Close() error
}

// Pending is work under way. Wait blocks until it is done and may be called once.
type Pending interface{ Wait() error }

// LayerWeights are the resident weights of one layer. A block that the layer does not have is the zero Block, a vector is nil.
type LayerWeights struct {
	InputNorm, PostNorm []float32 // [hidden]

	// MLA. QueryA and QueryANorm are absent when QueryRank is 0; QueryB is then the direct projection.
	QueryA     container.Block // [queryRank, hidden]
	QueryANorm []float32
	QueryB     container.Block // [heads·(nope+rope), queryRank]
	KVA        container.Block // [kvRank+rope, hidden]
	KVANorm    []float32       // [kvRank]
	KVB        container.Block // [heads·(nope+value), kvRank]; head h: nope rows of keys, then value rows

	// GQA
	Query, Key, Value                container.Block
	QueryBias, KeyBias, ValueBias    []float32
	QueryNorm, KeyNorm               []float32
	Output                           container.Block // both kinds: [hidden, heads·valueDim]
	IndexQuery, IndexKey, IndexScore container.Block // DSA, full layers: wq_b [heads·dim, queryRank], wk [dim, hidden], weights_proj [heads, hidden]
	IndexKeyNorm, IndexKeyNormBias   []float32       // LayerNorm, epsilon 1e-6

	// The dense feed-forward network, or the shared experts of a sparse layer.
	Gate, Up, Down container.Block

	Router     container.Block // sparse: [experts, hidden], F32
	RouterBias []float32       // [experts], or nil
}

// Cache is one sequence's memory of one layer. Rows are positions; Capacity rows are allocated.
type Cache struct {
	Capacity int
	Latent   []float32 // MLA: [capacity, kvRank], normalised
	Rope     []float32 // MLA: [capacity, ropeDim], rotated, pairs split: (j, j+ropeDim/2)
	Index    []float32 // DSA full layers: [capacity, indexDim], rotated part first
	Keys     []float32 // GQA: [capacity, kvHeads·headDim], rotated
	Values   []float32 // GQA
}

// Row is one token of a call: its position and the cache (index into LayerCall.Caches) of its sequence. A row sees
// the positions 0 … Position of its cache, those written by earlier rows of the same call included. Rows of one cache come in
// ascending, consecutive positions.
type Row struct {
	Position int
	Cache    int
	// TieSpan settles which of several equal index scores the DSA selection keeps. 0: those at the lowest positions. Otherwise
	// those that Hugging Face's implementation keeps when it selects from so many positions, the ones after this row's
	// at −Inf. Scores of exactly 0 tie in small models, where all index heads can be closed at once.
	TieSpan int
}

// Selection is the DSA indexer's choice of positions, made in a full layer and reused by the shared layers after it.
type Selection struct {
	Counts    []int32 // [rows]: chosen positions, or −1: all positions (context not longer than TopK)
	Positions []int32 // [rows, TopK], ascending, Counts[row] of them used
	Tied      []int32 // [rows]: 1 where some of several equal scores were chosen and others not, else 0
}

// LayerCall runs one layer for a batch of rows:
//
//	x += attention(norm(x))            caches receive the rows' new entries first
//	h  = norm(x)
//	dense layer:  x += down(silu(gate h) ⊙ up h)
//	sparse layer: Normed = h; Shared = down(silu(gate h) ⊙ up h), or zeros without shared experts;
//	              Experts, Gates = the router's choice for h
//
// Experts come in ascending id order with ties in the scores broken towards the lower id; a NaN score ranks below every number.
type LayerCall struct {
	Config    *container.Config
	Index     int // the layer's number
	Weights   *LayerWeights
	Rows      []Row
	Caches    []Cache
	Cos, Sin  []float32 // [rows, ropeDim/2], of the rows' positions, magnitude included
	Selection *Selection

	X      []float32 // [rows, hidden], in and out
	Normed []float32 // [rows, hidden], out
	Shared []float32 // [rows, hidden], out
	// SharedLater lets a processor that works in the caller's time leave Shared to SharedExperts, which is called next, so that reads of
	// the routed experts begin earlier. The numbers are the same. One that runs a layer as a single command has computed it by then.
	SharedLater bool
	// CachesOnly ends the layer once the caches have the rows' new entries: for rows whose output nobody asks for. X and Selection stay, and Normed,
	// Shared, Experts and Gates are not used.
	CachesOnly bool
	// Experts and Gates are [rows, PerToken], out.
	Experts []int32
	Gates   []float32
}

// ExpertWork is one expert and the rows that chose it.
type ExpertWork struct {
	Gate, Up, Down container.Block
	Rows           []int32 // rows of MoECall.Input
	Slots          []int32 // rows of MoECall.Output that receive the results, one for each of Rows
}

// MoECall computes Output[slot] = down(silu(gate x) ⊙ (up x)) for every expert and row; unweighted, so that the sum in
// Combine has one order whatever came first. Experts of one call may have different encodings.
type MoECall struct {
	Hidden, Inner int
	Input         []float32 // [rows, hidden]
	Work          []ExpertWork
	Output        []float32 // [slots, hidden]
}

// CombineCall adds a layer's experts to the residual stream, in ascending expert order:
// X[r] += (Σ_k Gates[r,k] · Output[r·PerToken+k]) + Shared[r].
type CombineCall struct {
	Rows, PerToken, Hidden   int
	Gates, Output, Shared, X []float32
}

// HeadCall computes Normed = norm(X) and Logits = Head·Normed for rows rows.
type HeadCall struct {
	Rows    int
	Norm    []float32
	Epsilon float32
	Head    *container.Block
	X       []float32 // [rows, hidden]
	Normed  []float32 // [rows, hidden], out
	Logits  []float32 // [rows, vocabulary], out
}
