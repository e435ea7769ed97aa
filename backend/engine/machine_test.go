package engine

import (
	"testing"

	"colibri/backend/residency"
)

func TestRatesAreMeasuredOnceForEachEncoding(t *testing.T) {
	if gpuComputes() {
		t.Skip("the GPU computes on this machine, where kernels of the CPU are not measured; machines without Metal run this test")
	}
	need := map[string]int64{"int8-row": 1}
	var r Rates
	if r.Has(need) {
		t.Error("nothing was measured, and all is known")
	}
	r, err := MeasureRates(t.Context(), r, need)
	if err != nil {
		t.Fatal(err)
	}
	if !r.Has(need) || r.ReadBytesPerSecond < 1e8 || r.KernelBytesPerSecond["int8-row"] < 1e7 || r.LayerSeconds < 0 || r.LayerSeconds > 1 {
		t.Errorf("%+v", r)
	}
	more, err := MeasureRates(t.Context(), r, map[string]int64{"int8-row": 1, "int4-g64": 1})
	if err != nil {
		t.Fatal(err)
	}
	if more.ReadBytesPerSecond != r.ReadBytesPerSecond || more.LayerSeconds != r.LayerSeconds || more.KernelBytesPerSecond["int8-row"] != r.KernelBytesPerSecond["int8-row"] {
		t.Errorf("measured again: %+v, then %+v", r, more)
	}
	if more.KernelBytesPerSecond["int4-g64"] < 1e7 || r.Has(map[string]int64{"int4-g64": 1}) {
		t.Errorf("%+v, then %+v", r, more)
	}
	if _, err := MeasureRates(t.Context(), r, map[string]int64{"int99": 1}); err == nil {
		t.Error("an unknown encoding was measured")
	}
}

// What a prompt's token costs beside its products is known only where the rate of those is. With products of no time it is all that there is.
func TestALayerOfAPromptIsMeasuredBesideItsProducts(t *testing.T) {
	for _, opsPerSecond := range []float64{0, 1e18} {
		cost, err := MeasureLayer(t.Context(), residency.Machine{WeightBytesPerSecond: 1e18, OpsPerSecond: opsPerSecond})
		if err != nil {
			t.Fatal(err)
		}
		if cost.Seconds <= 0 || cost.RowSeconds > 0 != (opsPerSecond > 0) {
			t.Errorf("%g operations a second: %+v", opsPerSecond, cost)
		}
	}
}
