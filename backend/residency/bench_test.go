package residency

import (
	"context"
	"testing"
)

// BenchmarkAcquire is what a token pays for a layer beside reading: 8 experts of 192, hits or misses, with 600 slots in use. The files
// are in the page cache or read directly, whichever the test directory's file system does.
func BenchmarkAcquire(b *testing.B) {
	c := generate(b, testShape{layers: 8, experts: 192})
	for name, step := range map[string]int32{"hits": 0, "misses": 8} {
		b.Run(name, func(b *testing.B) {
			s, _ := openStore(b, c, Options{LimitBytes: 600 * testSlotBytes, LeastSlots: 8})
			ctx := context.Background()
			ids := make([]int32, 8)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				for j := range ids {
					ids[j] = (int32(i/7)*step + int32(j)) % 192
				}
				l, err := s.Acquire(ctx, 1+i%7, ids)
				if err != nil {
					b.Fatal(err)
				}
				for {
					more, err := l.Next(ctx)
					if err != nil {
						b.Fatal(err)
					}
					if len(more) == 0 {
						break
					}
				}
				l.Release()
			}
		})
	}
}
