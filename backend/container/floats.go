package container

import (
	"math"
	"unsafe"
)

// floats views 4-byte-aligned little-endian memory as float32; every machine this program runs on is little-endian.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}

// bytesOf views float32 memory as the bytes that files hold.
func bytesOf(f []float32) []byte {
	if len(f) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(f))), len(f)*4)
}

func fromBF16(h uint16) float32 { return math.Float32frombits(uint32(h) << 16) }

// toBF16 rounds to nearest, ties to even. NaN stays NaN.
func toBF16(f float32) uint16 {
	u := math.Float32bits(f)
	if f != f {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7FFF + u>>16&1) >> 16)
}

func fromF16(h uint16) float32 {
	sign := uint32(h&0x8000) << 16
	exponent, mantissa := uint32(h>>10&0x1F), uint32(h&0x3FF)
	switch exponent {
	case 0: // zero and subnormals: mantissa · 2^-24
		f := float32(mantissa) * (1.0 / (1 << 24))
		return math.Float32frombits(math.Float32bits(f) | sign)
	case 31:
		return math.Float32frombits(sign | 0x7F800000 | mantissa<<13)
	}
	return math.Float32frombits(sign | (exponent+112)<<23 | mantissa<<13)
}

// toF16 rounds to nearest, ties to even; what is too large becomes infinite.
func toF16(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7FFFFFFF
	switch {
	case u > 0x7F800000:
		return sign | 0x7E00
	case u >= 0x477FF000: // 65520 and more round to infinity
		return sign | 0x7C00
	case u < 0x38800000: // below 2^-14: subnormal, a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(math.Float32frombits(u))*(1<<24)))
	}
	u += 0xFFF + u>>13&1
	return sign | uint16((u-112<<23)>>13)
}

// maxE4M3 is the largest finite e4m3fn number.
const maxE4M3 = 448

// e4m3 is the value of each e4m3fn byte: sign, 4 bits of exponent (bias 7), 3 of mantissa; no infinities, and 0x7F
// and 0xFF are NaN.
var e4m3 = func() (table [256]float32) {
	for code := range table {
		exponent, mantissa := code>>3&15, code&7
		v := math.Ldexp(float64(8+mantissa), exponent-10)
		if exponent == 0 {
			v = math.Ldexp(float64(mantissa), -9)
		}
		if code&0x7F == 0x7F {
			v = math.NaN()
		}
		if code&0x80 != 0 {
			v = math.Copysign(v, -1)
		}
		table[code] = float32(v)
	}
	return table
}()

// toE4M3 rounds to nearest, ties to even; what is too large becomes the largest finite number. It never gives a NaN code.
func toE4M3(f float32) byte {
	u := math.Float32bits(f)
	sign := byte(u >> 24 & 0x80)
	u &= 0x7FFFFFFF
	switch {
	case u >= 0x43E00000: // 448
		return sign | 0x7E
	case u < 0x3C800000: // below 2^-6: subnormal, a multiple of 2^-9
		return sign | byte(math.RoundToEven(float64(math.Float32frombits(u))*512))
	}
	u += 0x7FFFF + u>>20&1
	return sign | byte((u-120<<23)>>20)
}
