package cpu

import (
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"syscall"
	"testing"

	"colibri/backend/compute"
	"colibri/backend/container"
)

// benchModel is a whole model of random weights, without an engine: what a token costs here.
type benchModel struct {
	b       *Backend
	config  container.Config
	layers  []*compute.LayerWeights
	experts [][]compute.ExpertWork
	head    container.Block
	norm    []float32
	caches  [][]compute.Cache
	random  *rand.Rand
	bytes   int64 // weights that one token reads
}

func benchConfigs() map[string]container.Config {
	all := map[string]container.Config{
		"bundled": {Layers: 8, Hidden: 320, Vocabulary: 8192, DenseInner: 896, RoPE: container.RoPE{Dim: 32, Interleaved: true},
			Attention: container.Attention{Kind: container.MLA, Heads: 5, QueryRank: 192, KVRank: 128, NopeDim: 64, ValueDim: 64},
			MoE:       container.MoE{Experts: 32, PerToken: 4, Inner: 128, SharedInner: 128, Scoring: container.Sigmoid, SelectionBias: true, Normalise: true, Scale: 2.5}},
		"qwen3moe": {Layers: 8, Hidden: 2048, Vocabulary: 8192, RoPE: container.RoPE{Dim: 128},
			Attention: container.Attention{Kind: container.GQA, Heads: 32, KVHeads: 4, HeadDim: 128, QKNorm: container.QKNormHead},
			MoE:       container.MoE{Experts: 64, PerToken: 8, Inner: 768, Scoring: container.Softmax, Normalise: true, Scale: 1}},
		"glm4lite": {Layers: 6, Hidden: 2048, Vocabulary: 8192, DenseInner: 10240, RoPE: container.RoPE{Dim: 64, Interleaved: true},
			Attention: container.Attention{Kind: container.MLA, Heads: 20, QueryRank: 768, KVRank: 512, NopeDim: 192, ValueDim: 256},
			MoE:       container.MoE{Experts: 64, PerToken: 4, Inner: 1536, SharedInner: 1536, Scoring: container.Sigmoid, SelectionBias: true, Normalise: true, Scale: 1.8}},
	}
	for name, c := range all {
		c.NormEpsilon, c.RoPE.Magnitude, c.MoE.Groups, c.MoE.TopGroups = 1e-5, 1, 1, 1
		c.Attention.LatentNormEpsilon = 1e-6
		c.Attention.Scale = float32(1 / math.Sqrt(float64(c.Attention.NopeDim+c.Attention.HeadDim+c.RoPE.Dim)))
		for i := range c.Layers {
			c.Sparse = append(c.Sparse, i > 0 || c.DenseInner == 0)
		}
		all[name] = c
	}
	return all
}

func newBenchModel(b testing.TB, name string, experts, dense string, positions int) *benchModel {
	threads := 2
	if n, err := strconv.Atoi(os.Getenv("COLIBRI_BENCH_THREADS")); err == nil {
		threads = n
	}
	m := &benchModel{b: open(b, min(threads, runtime.NumCPU()), ""), config: benchConfigs()[name], random: newRandom(b)}
	c := &m.config
	parse := func(name string) container.Encoding {
		e, err := container.ParseEncoding(name)
		if err != nil {
			b.Fatal(err)
		}
		return e
	}
	for i := range c.Layers {
		w := newWeights(m.random, c, parse(dense), c.Sparse[i])
		m.layers = append(m.layers, w)
		for _, block := range []*container.Block{&w.QueryA, &w.QueryB, &w.KVA, &w.KVB, &w.Query, &w.Key, &w.Value, &w.Output, &w.Gate, &w.Up, &w.Down, &w.Router} {
			m.bytes += block.Bytes()
		}
		var work []compute.ExpertWork
		if c.Sparse[i] {
			for range c.MoE.Experts {
				work = append(work, compute.ExpertWork{Gate: randomBlock(m.random, parse(experts), c.MoE.Inner, c.Hidden, 1/math.Sqrt(float64(c.Hidden))),
					Up:   randomBlock(m.random, parse(experts), c.MoE.Inner, c.Hidden, 1/math.Sqrt(float64(c.Hidden))),
					Down: randomBlock(m.random, parse(experts), c.Hidden, c.MoE.Inner, 1/math.Sqrt(float64(c.MoE.Inner)))})
			}
			m.bytes += int64(c.MoE.PerToken) * (work[0].Gate.Bytes() + work[0].Up.Bytes() + work[0].Down.Bytes())
		}
		m.experts = append(m.experts, work)
		m.caches = append(m.caches, []compute.Cache{newCache(c, positions)})
	}
	m.head = randomBlock(m.random, parse("int8"), c.Vocabulary, c.Hidden, 1/math.Sqrt(float64(c.Hidden)))
	m.bytes += m.head.Bytes()
	m.norm = make([]float32, c.Hidden)
	for i := range m.norm {
		m.norm[i] = 1
	}
	return m
}

// run takes rows tokens through the model from a position on; logits of the last.
func (m *benchModel) run(b testing.TB, position, rows int) []float32 {
	c := &m.config
	x := normals(m.random, rows*c.Hidden, 1)
	var list []compute.Row
	for i := range rows {
		list = append(list, compute.Row{Position: position + i})
	}
	for i, w := range m.layers {
		call := newCall(c, w, list, m.caches[i], x)
		call.Index = i
		if err := m.b.Layer(call); err != nil {
			b.Fatal(err)
		}
		x = call.X
		if !c.Sparse[i] {
			continue
		}
		k := c.MoE.PerToken
		moe := &compute.MoECall{Hidden: c.Hidden, Inner: c.MoE.Inner, Input: call.Normed, Output: make([]float32, rows*k*c.Hidden)}
		byExpert := make([]compute.ExpertWork, c.MoE.Experts)
		for slot, id := range call.Experts {
			byExpert[id].Rows = append(byExpert[id].Rows, int32(slot/k))
			byExpert[id].Slots = append(byExpert[id].Slots, int32(slot))
		}
		for id, work := range byExpert {
			if len(work.Rows) > 0 {
				e := m.experts[i][id]
				e.Rows, e.Slots = work.Rows, work.Slots
				moe.Work = append(moe.Work, e)
			}
		}
		pending, err := m.b.MoEBegin(moe)
		if err == nil {
			err = pending.Wait()
		}
		if err == nil {
			err = m.b.Combine(&compute.CombineCall{Rows: rows, PerToken: k, Hidden: c.Hidden, Gates: call.Gates, Output: moe.Output, Shared: call.Shared, X: x})
		}
		if err != nil {
			b.Fatal(err)
		}
	}
	logits := make([]float32, c.Vocabulary)
	if err := m.b.Head(&compute.HeadCall{Rows: 1, Norm: m.norm, Epsilon: c.NormEpsilon, Head: &m.head, X: x[(rows-1)*c.Hidden:], Normed: make([]float32, c.Hidden),
		Logits: logits}); err != nil {
		b.Fatal(err)
	}
	return logits
}

// cpuSeconds is the process's processor time: on a busy machine it says more than the clock.
func cpuSeconds(b *testing.B) float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return float64(usage.Utime.Sec+usage.Stime.Sec) + 1e-6*float64(usage.Utime.Usec+usage.Stime.Usec)
}

func BenchmarkModel(b *testing.B) {
	for _, name := range []string{"bundled", "qwen3moe", "glm4lite"} {
		b.Run(name, func(b *testing.B) {
			const prompt = 512
			dense := "int8"
			if name != "bundled" {
				dense = "int4-g32" // what llama.cpp has there: 4.5 to 5 bits
			}
			experts := map[string]string{"bundled": "int4-g64", "qwen3moe": "int4-g32", "glm4lite": "int4-g32"}[name]
			m := newBenchModel(b, name, experts, dense, prompt+4096)
			m.run(b, 0, prompt)
			b.Run("prefill", func(b *testing.B) {
				used := cpuSeconds(b)
				for b.Loop() {
					m.run(b, 0, prompt)
				}
				b.ReportMetric(prompt*float64(b.N)/(cpuSeconds(b)-used), "tok/cpu-s")
				b.ReportMetric(prompt*float64(b.N)/b.Elapsed().Seconds(), "tok/s")
			})
			for _, from := range []int{0, prompt} {
				b.Run("decode after "+strconv.Itoa(from), func(b *testing.B) {
					used := cpuSeconds(b)
					for i := 0; b.Loop(); i++ {
						m.run(b, from+i%128, 1)
					}
					b.ReportMetric(float64(b.N)/(cpuSeconds(b)-used), "tok/cpu-s")
					rate := float64(b.N) / b.Elapsed().Seconds()
					b.ReportMetric(rate, "tok/s")
					b.ReportMetric(rate*float64(m.bytes)*1e-9, "GB/s")
				})
			}
		})
	}
}
