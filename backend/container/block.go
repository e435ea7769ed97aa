package container

// Block is a weight in memory: what a backend multiplies with. Rows are outputs, columns inputs: y = W·x.
// Data may start at any multiple of 4 bytes, Scales at any multiple of 4; whoever places them (the loader, the residency
// manager) sees to it. The memory belongs to whoever made the block and outlives every call that is given it.
type Block struct {
	Encoding
	Rows, Columns int
	Data          []byte
	Scales        []float32 // empty for F32, BF16 and F16
	Biases        []float32 // additive terms, one per scale, of affine formats; none of today's formats has them
}

// Present tells a described block from the zero value (a weight that this layer does not have).
func (b *Block) Present() bool { return b.Rows > 0 }

// Bytes is the memory the block reads when it is multiplied once.
func (b *Block) Bytes() int64 {
	return int64(len(b.Data)) + 4*int64(len(b.Scales)+len(b.Biases))
}
