package telemetry

import (
	"sync"
	"testing"
	"time"
)

func TestHistogramBucketsHoldWhatTheirLimitsSay(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 15999, 16000, 16001, 31999, 32000, time.Millisecond, time.Second, time.Hour} {
		var h atomicHistogram
		h.add(d)
		loaded := h.load()
		for i, c := range loaded.Counts {
			if c == 0 {
				continue
			}
			if i > 0 && d < BucketLimit(i-1) || i < LatencyBuckets-1 && d >= BucketLimit(i) {
				t.Errorf("%v was counted in bucket %d, [%v, %v)", d, i, BucketLimit(max(i-1, 0)), BucketLimit(i))
			}
		}
		if loaded.Count() != 1 || loaded.Total != d {
			t.Errorf("%v: count %d, total %v", d, loaded.Count(), loaded.Total)
		}
	}
}

func TestQuantileBoundsTheSample(t *testing.T) {
	var h atomicHistogram
	for i := 1; i <= 100; i++ {
		h.add(time.Duration(i) * time.Millisecond)
	}
	loaded := h.load()
	if q := loaded.Quantile(0.5); q < 50*time.Millisecond || q > 100*time.Millisecond {
		t.Errorf("median of 1…100 ms: %v", q)
	}
	if q := loaded.Quantile(1); q < 100*time.Millisecond || q > 200*time.Millisecond {
		t.Errorf("maximum of 1…100 ms: %v", q)
	}
	if (&Histogram{}).Quantile(0.5) != 0 {
		t.Error("a quantile of nothing")
	}
}

func TestPeakIsTheHighestSumEver(t *testing.T) {
	r := New(1, 1)
	r.SetLimit(1000)
	r.SetMemory(Resident, 100)
	r.SetMemory(KV, 50)
	r.SetMemory(Slots, 700)
	r.SetMemory(Slots, 300)
	r.SetMemory(Scratch, 10)
	s := r.Snapshot()
	if s.PeakBytes != 850 || s.UsedBytes != 460 || s.LimitBytes != 1000 {
		t.Errorf("peak %d, used %d, limit %d", s.PeakBytes, s.UsedBytes, s.LimitBytes)
	}
}

func TestWaitIsGivenToTheTokenThatWaited(t *testing.T) {
	r := New(1, 1)
	r.Waited(3 * time.Millisecond)
	r.Waited(4 * time.Millisecond)
	r.Token(20 * time.Millisecond)
	if s := r.Snapshot(); s.LastTokenWaitTime != 7*time.Millisecond || s.LastTokenTime != 20*time.Millisecond {
		t.Errorf("first token: %+v", s)
	}
	r.Token(5 * time.Millisecond)
	if s := r.Snapshot(); s.LastTokenWaitTime != 0 || s.Wait != 7*time.Millisecond || s.Tokens != 2 || s.TokenTime != 25*time.Millisecond {
		t.Errorf("second token: %+v", s)
	}
}

func TestComputingTimeIsSummedByKind(t *testing.T) {
	r := New(1, 1)
	r.Spent(5*time.Millisecond, 3*time.Millisecond, time.Millisecond)
	r.Spent(time.Millisecond, 0, -time.Hour) // a clock that was set back
	if s := r.Snapshot(); s.Attention != 6*time.Millisecond || s.Experts != 3*time.Millisecond || s.Other != time.Millisecond {
		t.Errorf("%v, %v, %v", s.Attention, s.Experts, s.Other)
	}
}

func TestTiersCountAndPaint(t *testing.T) {
	r := New(2, 3)
	r.SetTier(1, 2, OnDisk, Loading)
	r.SetTier(1, 2, Loading, Cached)
	r.SetTier(0, 0, OnDisk, Pinned)
	r.Use(1, 2, true)
	r.Use(1, 2, false)
	r.Use(7, 0, true) // outside the atlas: counted, not painted
	s, a := r.Snapshot(), r.Atlas()
	if s.CachedSlots != 1 || s.PinnedSlots != 1 || s.LoadingSlots != 0 || s.Hits != 2 || s.Misses != 1 {
		t.Errorf("%+v", s)
	}
	if a.Heat[5] != 2 || Tier(a.Tiers[5]) != Cached || Tier(a.Tiers[0]) != Pinned {
		t.Errorf("%+v", a)
	}
}

func TestSnapshotsWhileCounting(t *testing.T) {
	r := New(4, 4)
	var workers sync.WaitGroup
	for w := range 4 {
		workers.Go(func() {
			for i := range 1000 {
				r.Use(w, i%4, i%2 == 0)
				r.Read(100, time.Millisecond)
				r.SetMemory(Slots, int64(i))
				r.Notice("the same sentence")
				_, _ = r.Snapshot(), r.Atlas()
			}
		})
	}
	workers.Wait()
	if s := r.Snapshot(); s.Hits+s.Misses != 4000 || s.ReadBytes != 400000 || len(s.Notices) != 1 {
		t.Errorf("%+v", s)
	}
}
