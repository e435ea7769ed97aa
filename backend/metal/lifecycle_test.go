//go:build metalsim && linux

package metal

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"colibri/backend/compute"
	"colibri/backend/container"
	"colibri/backend/cpu"
	"colibri/backend/metal/simulator"
)

// The mechanism's statements about memory, as tests on the simulated system. openTest fails each of them on any report of
// the validator, which checks every access of every kernel where Strict is set.

// smallProduct runs a product in an arena and compares it.
func smallProduct(t testing.TB, b *Backend, a *arena, seed uint64) {
	t.Helper()
	rng := newQuietRand(seed, 99)
	a.used = 0
	w := a.randomWeight(rng, encodings[6], 64, 128)
	x, y := a.random(rng, 2*128), a.floats(2*64)
	if err := b.Linear(&w, x, y, 2); err != nil {
		t.Fatal(err)
	}
	closeTo(t, "a product", y, product(&w, doubles(x)), productLimit)
}

func TestAdditionsWaitForTheNextSubmit(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true}, Options{})
	adds, commits := simulator.Calls("addAllocation:"), simulator.Calls("MTLResidencySet.commit")
	first, second := newArena(t, b, 1<<20), newArena(t, b, 1<<20)
	if n := simulator.Calls("addAllocation:") - adds; n != 0 {
		t.Errorf("registering added %d buffers to the set at once", n)
	}
	smallProduct(t, b, first, 1)
	if n := simulator.Calls("addAllocation:") - adds; n != 2 {
		t.Errorf("%d buffers were added before the first dispatch, 2 expected", n)
	}
	if n := simulator.Calls("MTLResidencySet.commit") - commits; n != 1 {
		t.Errorf("%d commits for two additions, 1 expected", n)
	}
	c := b.Counters()
	if c.SetCommit <= 0 || c.SetAdds < 2 {
		t.Errorf("set commits are not timed or additions not counted: %+v", c)
	}
	smallProduct(t, b, second, 2)
	if n := simulator.Calls("MTLResidencySet.commit") - commits; n != 1 {
		t.Errorf("a submit without additions committed the set: %d commits", n)
	}
}

func TestRemovalsAreCommittedBeforeTheMemoryIsFreed(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true}, Options{})
	a := newArena(t, b, 1<<20)
	memory := mapMemory(t, 1<<20)
	if err := b.Register(memory); err != nil {
		t.Fatal(err)
	}
	smallProduct(t, b, a, 1)
	members, commits, removals, buffers := b.Counters().SetMembers, simulator.Calls("MTLResidencySet.commit"), simulator.Calls("removeAllocation:"), simulator.LiveObjects("MTLBuffer")
	if err := b.Unregister(memory); err != nil {
		t.Fatal(err)
	}
	if n := simulator.Calls("removeAllocation:") - removals; n != 1 {
		t.Errorf("%d removals, 1 expected", n)
	}
	if n := simulator.Calls("MTLResidencySet.commit") - commits; n != 1 {
		t.Errorf("%d commits before unregister returned, 1 expected", n)
	}
	if n := b.Counters().SetMembers; n != members-1 {
		t.Errorf("the set has %d members, %d expected", n, members-1)
	}
	if n := simulator.LiveObjects("MTLBuffer"); n != buffers-1 {
		t.Errorf("%d buffers, %d expected", n, buffers-1)
	}
	// Memory that was never part of a submit needs no commit.
	if err := b.Register(memory); err != nil {
		t.Fatal(err)
	}
	commits = simulator.Calls("MTLResidencySet.commit")
	if err := b.Unregister(memory); err != nil {
		t.Fatal(err)
	}
	if n := simulator.Calls("MTLResidencySet.commit") - commits; n != 0 {
		t.Errorf("%d commits for memory that was never added", n)
	}
	if err := b.Unregister(memory); err == nil {
		t.Error("memory can be unregistered twice")
	}
}

func TestRegisteringAnAddressAgainReplacesItsWrapper(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true}, Options{})
	a := newArena(t, b, 2<<20)
	smallProduct(t, b, a, 1)
	buffers, members := simulator.LiveObjects("MTLBuffer"), b.Counters().SetMembers
	for i := range 5 {
		length := len(a.whole)
		if i%2 == 0 {
			length /= 2
		}
		if err := b.Register(a.whole[:length]); err != nil {
			t.Fatal(err)
		}
		smallProduct(t, b, a, uint64(i))
		if n := simulator.LiveObjects("MTLBuffer"); n != buffers {
			t.Errorf("%d buffers after registering again, %d expected", n, buffers)
		}
		if c := b.Counters(); c.SetMembers != members || c.Bytes != uint64(length) || c.Ranges != 1 {
			t.Errorf("the set has %d members, %d ranges of %d bytes are registered", c.SetMembers, c.Ranges, c.Bytes)
		}
	}
	if err := b.Register(a.whole); err != nil {
		t.Fatal(err)
	}
	for _, part := range [][]byte{a.whole[page : 2*page], a.whole[page:]} {
		if err := b.Register(part); err == nil {
			t.Error("memory inside registered memory can be registered")
		}
	}
}

func TestAFailedRegistrationLeavesNothingBehind(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true, MaxBufferLength: 256 << 10}, Options{})
	memory := mapMemory(t, 1<<20) // four pieces
	before, buffers := b.Counters(), simulator.LiveObjects("MTLBuffer")
	for fail := range uint64(4) {
		simulator.FailAllocation(fail)
		err := b.Register(memory)
		if err == nil {
			t.Fatal("a registration without buffers succeeds")
		}
		if !strings.Contains(err.Error(), "1048576") {
			t.Errorf("the error does not say how much memory it is about: %v", err)
		}
		if n := simulator.LiveObjects("MTLBuffer"); n != buffers {
			t.Errorf("piece %d: %d buffers are left, %d expected", fail, n, buffers)
		}
		if c := b.Counters(); c.Ranges != before.Ranges || c.SetMembers != before.SetMembers || c.Bytes != 0 {
			t.Errorf("piece %d: %+v is left", fail, c)
		}
	}
	if err := b.Register(memory); err != nil {
		t.Fatal(err)
	}
	smallProduct(t, b, &arena{t: t, b: b, whole: memory}, 1)
	if err := b.Unregister(memory); err != nil {
		t.Fatal(err)
	}
}

// The host tells the simulator when it holds the registry's lock; the validator reports a Metal call under it, and the two locks held together.
func TestNoMetalCallUnderTheRegistryLock(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true, MaxBufferLength: 256 << 10}, Options{})
	var work sync.WaitGroup
	for range 3 {
		memory := mapMemory(t, 1<<20)
		work.Add(1)
		go func() {
			defer work.Done()
			for range 20 {
				if err := b.Register(memory); err != nil {
					t.Error(err)
				}
				if err := b.Register(memory); err != nil {
					t.Error(err)
				}
				if err := b.Unregister(memory); err != nil {
					t.Error(err)
				}
			}
		}()
	}
	a := newArena(t, b, 1<<20)
	for i := range 20 {
		smallProduct(t, b, a, uint64(i))
	}
	work.Wait()
}

func TestGateOffTakesThePlainPathWithoutASet(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true}, Options{ResidencySet: "0"})
	if n := simulator.Calls("newResidencySetWithDescriptor:error:"); n != 0 {
		t.Errorf("%d residency sets were made", n)
	}
	a := newArena(t, b, 8<<20)
	other := newArena(t, b, 1<<20)
	rng := newQuietRand(1, 1)
	m := a.experts(rng, 128, 64, 2, []int{1, 2, 1}, all(encodings[6]))
	m.Output = other.floats(len(m.Output))
	declared := simulator.Calls("useResource:usage:")
	runExperts(t, b, m)
	checkExperts(t, "experts on the plain path", m)
	// weights and input, output, scratch: each once
	if n := simulator.Calls("useResource:usage:") - declared; n != 3 {
		t.Errorf("%d buffers were declared, 3 expected: %+v", n, b.Counters())
	}
	if c := b.Counters(); c.ResidencySet || c.ResourcesDeclared == 0 {
		t.Errorf("counters speak of a set: %+v", c)
	}
}

func TestAnUnavailableSetSaysOneLineAndContinues(t *testing.T) {
	for _, kind := range []simulator.ResidencySets{simulator.Unavailable, simulator.Unknown} {
		for _, c := range []struct {
			gate  string
			lines int
		}{{"1", 1}, {"", 0}, {"0", 0}} {
			t.Run(fmt.Sprintf("%d, gate %q", kind, c.gate), func(t *testing.T) {
				var notices bytes.Buffer
				b := openTest(t, simulator.Options{Strict: true, ResidencySets: kind}, Options{ResidencySet: c.gate, Notices: &notices})
				if n := strings.Count(notices.String(), "\n"); n != c.lines {
					t.Errorf("%d lines, %d expected: %q", n, c.lines, notices.String())
				}
				smallProduct(t, b, newArena(t, b, 1<<20), 1)
			})
		}
	}
	if _, err := OpenWith(Options{ResidencySet: "yes"}); err == nil || !strings.Contains(err.Error(), "COLI_METAL_RESSET") {
		t.Errorf("a wrong gate gives %v", err)
	}
}

// The cost of a submit in Metal calls must not grow with the memory that is registered: the fault of the plain path that the set is there to mend.
func TestCacheSizeDoesNotChangeTheCostOfASubmit(t *testing.T) {
	methods := []string{"useResource:usage:", "addAllocation:", "removeAllocation:", "MTLResidencySet.commit", "commandBuffer", "computeCommandEncoderWithDispatchType:",
		"setComputePipelineState:", "setBytes:length:atIndex:", "dispatchThreadgroups:threadsPerThreadgroup:", "memoryBarrierWithScope:", "newBufferWithLength:options:", "newBufferWithBytesNoCopy:length:options:deallocator:"}
	var want []uint64
	for _, slots := range []int{1, 8, 96} {
		t.Run(fmt.Sprintf("%d slots", slots), func(t *testing.T) {
			b := openTest(t, simulator.Options{}, Options{})
			a := newArena(t, b, 4<<20)
			for range slots {
				newArena(t, b, page)
			}
			m := a.experts(newQuietRand(1, 1), 128, 64, 2, []int{1, 1}, all(encodings[6]))
			runExperts(t, b, m) // the additions, once
			before := make([]uint64, len(methods))
			for i, name := range methods {
				before[i] = simulator.Calls(name)
			}
			runExperts(t, b, m)
			got := make([]uint64, len(methods))
			for i, name := range methods {
				got[i] = simulator.Calls(name) - before[i]
			}
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Errorf("a submit costs %v, with one slot %v (%v)", got, want, methods)
			}
		})
	}
	if want[0] != 0 || want[1] != 0 || want[3] != 0 {
		t.Errorf("a submit declares, adds or commits: %v (%v)", want, methods)
	}
}

// Outputs are byte-identical with the set on, off and unavailable.
func TestResidencySetDoesNotChangeOutputs(t *testing.T) {
	var want []float32
	for _, mode := range []struct {
		name string
		gate string
		sets simulator.ResidencySets
	}{{"on", "1", simulator.Available}, {"off", "0", simulator.Available}, {"unavailable", "", simulator.Unavailable}, {"unknown", "", simulator.Unknown}} {
		t.Run(mode.name, func(t *testing.T) {
			b := openTest(t, simulator.Options{Strict: true, ResidencySets: mode.sets}, Options{ResidencySet: mode.gate})
			a := newArena(t, b, 16<<20)
			rng := newQuietRand(2, 2)
			c := mla()
			l := a.layerCall(rng, c, 1, a.layerWeights(rng, c, 1, one(encodings[6])), rowsAt(0, 20, 3), 1, 32)
			if err := b.Layer(l); err != nil {
				t.Fatal(err)
			}
			m := a.experts(rng, c.Hidden, c.MoE.Inner, 3, []int{2, 1, 3}, all(encodings[6]))
			copy(m.Input, l.Normed)
			runExperts(t, b, m)
			got := slices.Concat(l.X, l.Normed, l.Shared, l.Gates, l.Caches[0].Latent, m.Output)
			if want == nil {
				want = got
			}
			if !slices.Equal(got, want) {
				t.Error("outputs differ from those with the set on")
			}
		})
	}
}

// Memory that a command buffer uses stays until the command buffer has ended.
func TestUnregisterWaitsForCommandBuffersThatUseTheMemory(t *testing.T) {
	for _, gate := range []string{"", "0"} {
		t.Run("gate "+gate, func(t *testing.T) {
			b := openTest(t, simulator.Options{Strict: true}, Options{ResidencySet: gate})
			a := newArena(t, b, 4<<20)
			memory := mapMemory(t, 4<<20)
			if err := b.Register(memory); err != nil {
				t.Fatal(err)
			}
			weights := &arena{t: t, b: b, whole: memory}
			m := weights.experts(newQuietRand(1, 1), 128, 64, 2, []int{1, 2}, all(encodings[6]))
			m.Input, m.Output = a.copy(m.Input), a.floats(len(m.Output))
			simulator.Hold(true)
			p, err := b.MoEBegin(m)
			if err != nil {
				t.Fatal(err)
			}
			gone := make(chan error)
			go func() { gone <- b.Unregister(memory) }()
			// While the GPU is held, unregister has nothing to return for. (A host that did not wait would release the buffer under
			// the running command buffer, which the validator reports at any speed.)
			select {
			case <-gone:
				t.Error("unregister returned while a command buffer used the memory")
			default:
			}
			simulator.Hold(false)
			if err := <-gone; err != nil {
				t.Fatal(err)
			}
			if err := p.Wait(); err != nil {
				t.Fatal(err)
			}
			checkExperts(t, "experts whose memory is about to go", m)
			if err := b.Linear(&m.Work[0].Gate, m.Input, a.floats(128), 1); err == nil {
				t.Error("unregistered memory can be used")
			}
		})
	}
}

// Ranges longer than a buffer may be are wrapped in pieces; a weight across two of them is found too.
func TestRangesLongerThanABuffer(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true, MaxBufferLength: 10 * page}, Options{})
	a := newArena(t, b, 128*page)
	rng := newQuietRand(1, 1)
	x, y := a.random(rng, 512), a.floats(128)
	for range 12 {
		w := a.randomWeight(rng, encodings[3], 128, 512)
		if err := b.Linear(&w, x, y, 1); err != nil {
			t.Fatal(err)
		}
		closeTo(t, "a weight", y, product(&w, doubles(x)), productLimit)
	}
	huge := a.randomWeight(rng, encodings[3], 2, 11*page/2)
	if err := b.Linear(&huge, a.floats(11*page/2), y, 1); err == nil || !strings.Contains(err.Error(), "one buffer") {
		t.Errorf("a weight larger than any buffer gives %v", err)
	}
}

// ---- faults

func TestFailuresAreErrorsThatNameTheirCause(t *testing.T) {
	b := openTest(t, simulator.Options{Strict: true}, Options{})
	a := newArena(t, b, 4<<20)
	m := a.experts(newQuietRand(1, 1), 128, 64, 2, []int{1, 2}, all(encodings[6]))
	for code, word := range map[int]string{2: "2", 3: "3", 8: "8", 14: "14"} {
		simulator.FailCommandBuffer(0, code)
		p, err := b.MoEBegin(m)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Wait(); err == nil || !strings.Contains(err.Error(), "code "+word) {
			t.Errorf("a command buffer that fails with code %d gives %v", code, err)
		}
		runExperts(t, b, m)
		checkExperts(t, "experts after a failure", m)
	}
	if c := b.Counters(); c.BlocksFailed != 4 || c.Blocks != 4 {
		t.Errorf("%d blocks failed and %d succeeded, 4 and 4 expected", c.BlocksFailed, c.Blocks)
	}
	simulator.LoseDevice(true)
	if err := b.Combine(&compute.CombineCall{Rows: 1, PerToken: 1, Hidden: 4, Gates: []float32{1}, Output: a.floats(4), Shared: a.floats(4), X: a.floats(4)}); err == nil {
		t.Error("a lost device gives no error")
	}
	simulator.LoseDevice(false)
}

// What the GPU does not complete is repeated by the fallback from intact inputs, and counted.
func TestFailuresAreRepeatedOnTheFallback(t *testing.T) {
	processor, err := cpu.New(1)
	if err != nil {
		t.Fatal(err)
	}
	processor.KeepActivations()
	b := openTest(t, simulator.Options{Strict: true}, Options{Fallback: processor}) // which closes it
	a := newArena(t, b, 16<<20)
	rng := newQuietRand(1, 1)
	c := mla()
	l := a.layerCall(rng, c, 1, a.layerWeights(rng, c, 1, one(encodings[6])), rowsAt(0, 20, 3), 1, 32)
	want := reference(l)
	simulator.FailCommandBuffer(0, 2)
	if err := b.Layer(l); err != nil {
		t.Fatal(err)
	}
	checkLayerAgainst(t, "a layer repeated", l, want)
	m := a.experts(rng, 128, 64, 2, []int{1, 2}, all(encodings[6]))
	simulator.FailCommandBuffer(0, 8)
	runExperts(t, b, m)
	checkExperts(t, "experts repeated", m)
	x, y := a.random(rng, 128), a.floats(64)
	simulator.FailCommandBuffer(0, 3)
	if err := b.Linear(&m.Work[0].Gate, x, y, 1); err != nil {
		t.Fatal(err)
	}
	closeTo(t, "a product repeated", y, product(&m.Work[0].Gate, doubles(x)), productLimit)
	if n := b.Counters().Repeated; n != 3 {
		t.Errorf("%d calls are counted as repeated, 3 expected", n)
	}
	if err := b.Linear(&container.Block{}, x, y, 1); err == nil || b.Counters().Repeated != 3 {
		t.Error("a caller's mistake is repeated")
	}
}

func TestAKernelThatDoesNotBuildIsNamed(t *testing.T) {
	for _, kernel := range []string{"matvec", "expert_gate_up", "expert_down", "combine", "embed", "rms_norm", "head_transform", "absorb", "attend", "attend_merge", "attend_tiles", "index_scores", "index_select",
		"route", "gemm", "expert_gemm_gate_up", "expert_gemm_down"} {
		simulator.Configure(simulator.Options{Collect: true})
		simulator.FailPipeline(kernel)
		if _, err := OpenWith(Options{}); err == nil || !strings.Contains(err.Error(), "kernel "+kernel+" ") {
			t.Errorf("%s: %v", kernel, err)
		}
		simulator.FailPipeline("")
		if n := simulator.LiveObjects(""); n != 0 {
			t.Errorf("%s: %d objects are left", kernel, n)
		}
	}
	if err := simulator.Check(); err != nil {
		t.Error(err)
	}
}

func TestASystemWithoutADeviceIsToldApart(t *testing.T) {
	simulator.Configure(simulator.Options{NoDevice: true, Collect: true})
	defer simulator.Configure(simulator.Options{})
	if Available() {
		t.Error("available without a device")
	}
	if _, err := OpenWith(Options{}); err == nil || !strings.Contains(err.Error(), "no Metal device") {
		t.Error(err)
	}
}

func TestRegisterInsistsOnPages(t *testing.T) {
	b := openTest(t, simulator.Options{}, Options{})
	memory := mapMemory(t, 4*page)
	for _, part := range [][]byte{nil, memory[:page-1], memory[1 : page+1], memory[4096 : 4096+page], memory[:page+4096]} {
		if err := b.Register(part); err == nil {
			t.Errorf("%d bytes at an offset are accepted", len(part))
		}
	}
}

// The whole life at random: ranges come and go, submits use what is there, completions come late, the system refuses memory now and
// then. COLIBRI_METAL_OPERATIONS sets the number of operations; the long run is 100,000.
func TestRandomLife(t *testing.T) {
	operations := 300
	if text := os.Getenv("COLIBRI_METAL_OPERATIONS"); text != "" {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		operations = n
	}
	rng := newRand(t)
	b := openTest(t, simulator.Options{Strict: true, Seed: rng.Uint64() | 1, MaxBufferLength: 8 * page}, Options{})
	const hidden, inner, ranges = 32, 16, 12
	type slot struct {
		memory     []byte
		registered bool
		users      int
		weights    compute.ExpertWork
		want       []float64
	}
	io := newArena(t, b, 4<<20)
	input := io.random(rng, hidden)
	slots := make([]slot, ranges)
	for i := range slots {
		s := &slots[i]
		s.memory = mapMemory(t, (2+i)*page)
		a := &arena{t: t, b: b, whole: s.memory, used: rng.IntN(len(s.memory)-page) / 16 * 16}
		e := encodings[3+i%5]
		s.weights = compute.ExpertWork{Gate: a.randomWeight(rng, e, inner, hidden), Up: a.randomWeight(rng, e, inner, hidden), Down: a.randomWeight(rng, e, hidden, inner)}
		s.want = network(&s.weights.Gate, &s.weights.Up, &s.weights.Down, doubles(input))
	}
	type flight struct {
		pending compute.Pending
		call    *compute.MoECall
		used    []int
		failing bool
	}
	var inFlight []flight
	outputs := make([][]float32, 4)
	for i := range outputs {
		outputs[i] = io.floats(ranges * hidden)
	}
	free := []int{0, 1, 2, 3}
	finish := func(i int) {
		f := inFlight[i]
		inFlight = slices.Delete(inFlight, i, i+1)
		if err := f.pending.Wait(); err != nil {
			if !strings.Contains(err.Error(), "command buffer") {
				t.Fatal(err)
			}
		} else {
			for j, s := range f.used {
				closeTo(t, "an expert", f.call.Output[j*hidden:(j+1)*hidden], slots[s].want, productLimit)
			}
		}
		for _, s := range f.used {
			slots[s].users--
		}
		for i := range outputs {
			if &outputs[i][0] == &f.call.Output[0] {
				free = append(free, i)
			}
		}
	}
	for range operations {
		switch s := &slots[rng.IntN(ranges)]; rng.IntN(8) {
		case 0, 1, 2: // register, perhaps again; now and then the system refuses
			if rng.IntN(10) == 0 {
				simulator.FailAllocation(0)
				if err := b.Register(s.memory); err == nil {
					t.Fatal("a refused registration succeeds")
				}
				continue
			}
			if err := b.Register(s.memory); err != nil {
				t.Fatal(err)
			}
			s.registered = true
		case 3: // pressure: a range goes, whether in flight or not
			if s.registered {
				if err := b.Unregister(s.memory); err != nil {
					t.Fatal(err)
				}
				s.registered = false
			}
		case 4, 5, 6:
			if len(free) == 0 {
				finish(rng.IntN(len(inFlight)))
				continue
			}
			call := &compute.MoECall{Hidden: hidden, Inner: inner, Input: input, Output: outputs[free[len(free)-1]]}
			f := flight{call: call}
			for _, i := range rng.Perm(ranges)[:1+rng.IntN(4)] {
				if slots[i].registered {
					w := slots[i].weights
					w.Rows, w.Slots = []int32{0}, []int32{int32(len(f.used))}
					call.Work = append(call.Work, w)
					f.used = append(f.used, i)
				}
			}
			if rng.IntN(20) == 0 {
				simulator.FailCommandBuffer(0, 1+rng.IntN(14))
				f.failing = true
			}
			var err error
			if f.pending, err = b.MoEBegin(call); err != nil {
				t.Fatal(err)
			}
			for _, i := range f.used {
				slots[i].users++
			}
			free = free[:len(free)-1]
			inFlight = append(inFlight, f)
		case 7:
			if len(inFlight) > 0 {
				finish(rng.IntN(len(inFlight)))
			}
		}
	}
	for len(inFlight) > 0 {
		finish(0)
	}
	for i := range slots {
		if slots[i].registered {
			if err := b.Unregister(slots[i].memory); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// ---- the heartbeat

func TestHeartbeatKeepsMemoryForAsLongAsAConversationLasts(t *testing.T) {
	for _, c := range []struct {
		idle    time.Duration
		claimed bool
		want    beat
	}{{0, false, wire}, {time.Second, true, wire}, {heartbeatAfter - 1, true, wire}, {heartbeatAfter, true, letGo}, {heartbeatAfter, false, rest}, {time.Hour, false, rest}} {
		if got := nextBeat(c.idle, c.claimed); got != c.want {
			t.Errorf("idle for %v, claimed %v: %d, %d expected", c.idle, c.claimed, got, c.want)
		}
	}
	if heartbeatPeriod >= time.Second {
		t.Error("the system lets memory go after a second; the heartbeat must come before that")
	}

	b := openTest(t, simulator.Options{Strict: true}, Options{})
	a := newArena(t, b, 1<<20)
	smallProduct(t, b, a, 1)
	last := time.Unix(0, b.lastUse.Load())
	asked := simulator.Calls("requestResidency")
	if !b.heartbeat(last.Add(time.Second), false) || simulator.Calls("requestResidency") == asked {
		t.Error("a second after a call the memory is not claimed")
	}
	given := simulator.Calls("endResidency")
	if b.heartbeat(last.Add(heartbeatAfter), true) || simulator.Calls("endResidency") != given+1 {
		t.Error("after idle minutes the memory is not given free")
	}
	if b.heartbeat(last.Add(2*heartbeatAfter), false) || simulator.Calls("endResidency") != given+1 {
		t.Error("memory is given free twice")
	}
	smallProduct(t, b, a, 2) // what was given free is there for the next call
}

// A call whose GPU time would exceed the cap is several command buffers, and its numbers are those of one. The simulated clock makes the GPU
// look as slow as the host believes possible, 10⁹ multiply-adds a second: 2·10⁸ a command buffer.
func TestCallsOfLongGPUTimeAreCut(t *testing.T) {
	b := openTest(t, simulator.Options{GPUClockFactor: 1e6}, Options{})
	a := newArena(t, b, 16<<20)
	rng := newQuietRand(3, 3)
	const columns, outputs, rows = 1024, 512, 400
	w := a.randomWeight(rng, encodings[6], outputs, columns)
	x, y, again := a.random(rng, rows*columns), a.floats(rows*outputs), a.floats(rows*outputs)
	before := b.Counters().CommandBuffers
	if err := b.Linear(&w, x, y, rows); err != nil {
		t.Fatal(err)
	}
	if n := b.Counters().CommandBuffers - before; n != 1 {
		t.Errorf("%d command buffers before the speed is known, 1 expected", n)
	}
	for range 10 { // the estimate halves its distance each time
		if err := b.Linear(&w, x, again, 20); err != nil {
			t.Fatal(err)
		}
	}
	before = b.Counters().CommandBuffers
	if err := b.Linear(&w, x, again, rows); err != nil {
		t.Fatal(err)
	}
	if n := b.Counters().CommandBuffers - before; n != 2 {
		t.Errorf("%d command buffers for 2.1·10⁸ multiply-adds, 2 expected", n)
	}
	if !slices.Equal(y, again) {
		t.Error("numbers depend on how the call is cut")
	}
}
