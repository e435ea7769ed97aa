package container

// ExpertAlignment is the alignment of an expert record in our files and of a slot in memory: the page of a Mac,
// which direct reads, newBufferWithBytesNoCopy and every smaller page size accept.
const ExpertAlignment = 16 << 10

// Expert is everything needed to bring one routed expert into memory and to use it there.
// A slot of SlotBytes bytes, 16 KiB-aligned, receives the reads; Gate, Up and Down then lie at fixed places in it.
// Two experts with equal Layout differ only in where they are read from.
type Expert struct {
	Layer, Index int
	Layout       ExpertLayout
	Reads        []Read
	// Sum is the CRC-32C (Castagnoli) of the whole slot, where HasSum says that the file carries one: our own records.
	Sum    uint32
	HasSum bool
}

// ExpertLayout says where the three matrices of an expert lie in its slot. It is comparable: slots of equal
// layout are interchangeable.
type ExpertLayout struct {
	SlotBytes      int64 // multiple of ExpertAlignment
	Gate, Up, Down Placement
}

// Placement is a matrix within a slot: byte offsets from the slot's start, multiples of 16.
type Placement struct {
	Encoding
	Rows, Columns           int
	DataOffset, DataBytes   int64
	ScaleOffset, ScaleBytes int64
}

// Read is one contiguous piece of a file. Whole reads (Pieces empty) go to the slot's start byte for byte: our own
// records, whose Offset and Bytes are multiples of ExpertAlignment. Others are read into a buffer and their
// pieces copied to the slot: published containers, where weights and scales lie apart and begin anywhere.
type Read struct {
	File          int // index into Container.Files
	Offset, Bytes int64
	Pieces        []Piece
}

// Piece is a part of a Read and the place in the slot where it belongs.
type Piece struct {
	From, To, Bytes int64
}

// Blocks gives the three matrices of an expert whose record lies in slot. The slot must be at least SlotBytes long and
// 4-byte aligned.
func (l *ExpertLayout) Blocks(slot []byte) (gate, up, down Block) {
	return l.Gate.block(slot), l.Up.block(slot), l.Down.block(slot)
}

func (p *Placement) block(slot []byte) Block {
	return Block{
		Encoding: p.Encoding, Rows: p.Rows, Columns: p.Columns,
		Data:   slot[p.DataOffset : p.DataOffset+p.DataBytes : p.DataOffset+p.DataBytes],
		Scales: floats(slot[p.ScaleOffset : p.ScaleOffset+p.ScaleBytes]),
	}
}
