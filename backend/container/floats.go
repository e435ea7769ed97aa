package container

import "unsafe"

// floats views 4-byte-aligned little-endian memory as float32; every machine this program runs on is little-endian.
func floats(b []byte) []float32 {
	if len(b) == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/4)
}
