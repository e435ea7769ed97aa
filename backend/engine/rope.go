package engine

import (
	"math"

	"colibri/backend/container"
)

// rotations fills cos and sin for one position. Angles are computed in float64: at position 100,000 a float32 angle is already
// wrong in the third digit.
func rotations(rope *container.RoPE, position int, cos, sin []float32) {
	magnitude := float64(rope.Magnitude)
	for j, frequency := range rope.InverseFrequencies {
		s, c := math.Sincos(float64(position) * frequency)
		cos[j] = float32(c * magnitude)
		sin[j] = float32(s * magnitude)
	}
}
