package main

import (
	"math"
	"testing"
)

// Rates made of a second for each 100 bytes of weights and one for each 1,000 operations are found again; noise gives no negative ones.
func TestRatesOfAPassAreTakenApart(t *testing.T) {
	const bytesPerWeight = 0.5
	rate := func(rows float64) float64 { return 2 * rows / (bytesPerWeight/100 + 2*rows/1000) }
	bytes, ops := passRates(rate(fewTokens), rate(manyTokens), bytesPerWeight)
	if math.Abs(bytes-100) > 1e-6 || math.Abs(ops-1000) > 1e-6 {
		t.Errorf("%g bytes and %g operations a second", bytes, ops)
	}
	for _, few := range []float64{1, 1000, 1e6} {
		if bytes, ops := passRates(few, 1000, bytesPerWeight); !(bytes > 0) || !(ops > 0) || math.IsInf(bytes+ops, 0) {
			t.Errorf("%g and 1000 operations a second: %g bytes, %g operations", few, bytes, ops)
		}
	}
}
