package container

import (
	"fmt"
	"strings"
)

// Format says how the numbers of a weight are stored. It is part of the weight's type: code that meets a
// format it has no kernel for must say so by name, and never read the bytes as another format.
//
// The numbering is private to this program; files carry names (see String), never numbers.
type Format uint8

const (
	// F32, BF16 and F16 are little-endian numbers, row by row, without scales.
	F32 Format = iota + 1
	BF16
	F16
	// Int8Row: one signed byte a weight, one float32 scale a row. w = scale·q.
	Int8Row
	// Int4Row: two weights a byte, low nibble first, value nibble−8, one float32 scale a row. Every row
	// starts on a byte: an odd row leaves its last high nibble unused.
	Int4Row
	// Int2Row: four weights a byte, least significant first, value bits−2, one float32 scale a row.
	Int2Row
	// Int4Group: the bytes of Int4Row with one float32 scale for every Group inputs of a row, the last
	// group possibly short: scales are [rows][ceil(columns/group)].
	Int4Group
	// Int3Group64: 24 bytes for 64 inputs, 16 of low bits (2 a weight) then 8 of high bits (1 a weight),
	// value bits−4, one float32 scale a group: 3.5 bits a weight. The last group is stored whole.
	Int3Group64
	// FP8Block128: e4m3fn bytes, row by row, and one float32 scale for each 128×128 tile:
	// scales are [ceil(rows/128)][ceil(columns/128)].
	FP8Block128
)

// Block128 is the edge of a tile of FP8Block128.
const Block128 = 128

var formatNames = map[Format]string{
	F32: "f32", BF16: "bf16", F16: "f16",
	Int8Row: "int8-row", Int4Row: "int4-row", Int2Row: "int2-row",
	Int4Group: "int4-grouped", Int3Group64: "int3-g64", FP8Block128: "fp8-e4m3-b128",
}

// String is the format's name in the files' stamps and in every message.
func (f Format) String() string {
	if name, ok := formatNames[f]; ok {
		return name
	}
	return fmt.Sprintf("format %d", uint8(f))
}

// Encoding is a format with its parameter: the number of inputs that share a scale (Int4Group only; 0 otherwise).
type Encoding struct {
	Format Format
	Group  int
}

// String names the encoding as users write it: "int4-g64", "int8-row".
func (e Encoding) String() string {
	if e.Format == Int4Group {
		return fmt.Sprintf("int4-g%d", e.Group)
	}
	return e.Format.String()
}

// ParseEncoding reads a name as String writes it; "int8", "int4", "int2" mean the row formats,
// "fp8" the blocked one and "int3" int3-g64.
func ParseEncoding(name string) (Encoding, error) {
	switch n := strings.ToLower(strings.TrimSpace(name)); n {
	case "f32", "bf16", "f16", "int8-row", "int4-row", "int2-row", "int3-g64", "fp8-e4m3-b128":
		for f, s := range formatNames {
			if s == n {
				return Encoding{Format: f}, nil
			}
		}
	case "int8":
		return Encoding{Format: Int8Row}, nil
	case "int4":
		return Encoding{Format: Int4Row}, nil
	case "int2":
		return Encoding{Format: Int2Row}, nil
	case "int3":
		return Encoding{Format: Int3Group64}, nil
	case "fp8", "fp8-b128":
		return Encoding{Format: FP8Block128}, nil
	default:
		var group int
		if _, err := fmt.Sscanf(n, "int4-g%d", &group); err == nil && fmt.Sprintf("int4-g%d", group) == n &&
			group >= 16 && group%16 == 0 && group <= 1024 {
			return Encoding{Format: Int4Group, Group: group}, nil
		}
	}
	return Encoding{}, fmt.Errorf("%q is not a weight format; use one of f32, bf16, f16, int8, int4, int2, int4-g64 (any multiple of 16 up to 1024), int3-g64, fp8", name)
}

// DataBytes is the number of packed bytes of a rows×columns weight. Inputs must be positive; callers that hold
// untrusted sizes check them first (see checkedSizes).
func (e Encoding) DataBytes(rows, columns int) int64 {
	r, c := int64(rows), int64(columns)
	switch e.Format {
	case F32:
		return r * c * 4
	case BF16, F16:
		return r * c * 2
	case Int8Row, FP8Block128:
		return r * c
	case Int4Row, Int4Group:
		return r * ((c + 1) / 2)
	case Int2Row:
		return r * ((c + 3) / 4)
	case Int3Group64:
		return r * ((c + 63) / 64) * 24
	}
	return 0
}

// ScaleCount is the number of float32 scales of a rows×columns weight.
func (e Encoding) ScaleCount(rows, columns int) int64 {
	r, c := int64(rows), int64(columns)
	switch e.Format {
	case Int8Row, Int4Row, Int2Row:
		return r
	case Int4Group:
		g := int64(e.Group)
		return r * ((c + g - 1) / g)
	case Int3Group64:
		return r * ((c + 63) / 64)
	case FP8Block128:
		return ((r + 127) / 128) * ((c + 127) / 128)
	}
	return 0
}

// groupWidth is the number of inputs of a row that share a scale.
func (e Encoding) groupWidth(columns int) int {
	switch e.Format {
	case Int4Group:
		return e.Group
	case Int3Group64:
		return 64
	case FP8Block128:
		return Block128
	}
	return columns
}

// IsFloat tells formats without scales from quantised ones.
func (f Format) IsFloat() bool { return f == F32 || f == BF16 || f == F16 }

// largest is the largest number of a scaled format; symmetric quantisation maps the largest weight of a group to it.
func (f Format) largest() float32 {
	switch f {
	case Int8Row:
		return 127
	case Int4Row, Int4Group:
		return 7
	case Int3Group64:
		return 3
	case Int2Row:
		return 1
	case FP8Block128:
		return maxE4M3
	}
	return 0
}

// within is the encoding as rows of a width show it: groups at least as wide as the row are one scale a row.
func (e Encoding) within(columns int) Encoding {
	if e.Format == Int4Group && e.Group >= columns {
		return Encoding{Format: Int4Row}
	}
	return e
}
