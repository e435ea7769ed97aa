package telemetry

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// LatencyBuckets is the number of buckets of a Histogram. Bucket i counts durations below 16 µs·2^i that no lower
// bucket counts; the last one also counts everything longer (16 µs·2^19 = 8.4 s). A cached 3 MB read takes
// about 0.5 ms, a cold 20 MB one 2 to 15 ms, a sleeping disk seconds.
const LatencyBuckets = 20

const firstBucketMicros = 16

// Histogram counts durations in doubling buckets.
type Histogram struct {
	Counts [LatencyBuckets]uint64 `json:"counts"`
	Total  time.Duration          `json:"totalNanos"`
}

// BucketLimit is the upper bound of bucket i.
func BucketLimit(i int) time.Duration { return (firstBucketMicros << i) * time.Microsecond }

// Count is the number of durations counted.
func (h *Histogram) Count() uint64 {
	var n uint64
	for _, c := range h.Counts {
		n += c
	}
	return n
}

// Quantile is an upper bound for the q-th part of the durations (the limit of the bucket it falls in), 0 if there are none.
func (h *Histogram) Quantile(q float64) time.Duration {
	n := h.Count()
	if n == 0 {
		return 0
	}
	rank := uint64(q * float64(n-1))
	var seen uint64
	for i, c := range h.Counts {
		if seen += c; seen > rank {
			return BucketLimit(i)
		}
	}
	return BucketLimit(LatencyBuckets - 1)
}

type atomicHistogram struct {
	counts [LatencyBuckets]atomic.Uint64
	total  atomic.Int64
}

func (h *atomicHistogram) add(d time.Duration) {
	d = max(d, 0)
	i := bits.Len64(uint64(d / (firstBucketMicros * time.Microsecond)))
	h.counts[min(i, LatencyBuckets-1)].Add(1)
	h.total.Add(int64(d))
}

func (h *atomicHistogram) load() Histogram {
	var out Histogram
	for i := range h.counts {
		out.Counts[i] = h.counts[i].Load()
	}
	out.Total = time.Duration(h.total.Load())
	return out
}
