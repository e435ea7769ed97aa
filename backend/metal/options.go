package metal

import (
	"io"
	"os"
	"time"

	"colibri/backend/compute"
)

// Options of a backend; the zero value is right for almost everyone.
type Options struct {
	// ResidencySet is the value of COLI_METAL_RESSET: "" uses a residency set where the system has them (macOS 15), "0" never does and
	// declares every buffer to every command buffer, "1" asks for one and says in a line when the system lacks it.
	ResidencySet string
	// Fallback repeats what the GPU did not complete, counted in Counters.Repeated, and is closed with the backend. Without one the error is
	// returned.
	Fallback compute.Backend
	// Notices receives lines for people; nil is standard error.
	Notices io.Writer
}

// FromEnvironment reads COLI_METAL_RESSET.
func FromEnvironment() Options { return Options{ResidencySet: os.Getenv("COLI_METAL_RESSET")} }

// Open opens the GPU with the environment's options.
func Open() (*Backend, error) { return OpenWith(FromEnvironment()) }

// Counters are what the backend has done since it was opened.
type Counters struct {
	Blocks, BlocksFailed  uint64 // MoE blocks done on the GPU, and those it did not complete
	Repeated              uint64 // calls that the fallback repeated
	Experts, Layers       uint64
	CommandBuffers        uint64
	Dispatches            uint64
	UnalignedProducts     uint64 // took the byte-wise path: a weight of odd width or not 16-byte aligned
	ScratchAllocations    uint64 // stands still once the sizes are known
	ResourcesDeclared     uint64 // useResource calls: none with a residency set
	SetUp, Waiting        time.Duration
	GPU                   time.Duration // by the command buffers' own clocks
	Scatter               time.Duration // copying small results to the caller
	ResidencySet          bool
	SetMembers, SetAdds   uint64
	SetRemovals           uint64
	SetCommits            uint64
	SetCommit             time.Duration
	Ranges, Bytes         uint64 // registered
	Allocated, WorkingSet uint64 // of this process on the device, and what the system recommends
}

// The system lets go of memory that no GPU work has used for about a second, and the next token then waits for it. A
// heartbeat renews the claim while a conversation is going on, and gives the memory free when nobody has asked for anything in a while.
const (
	heartbeatPeriod = 500 * time.Millisecond
	heartbeatAfter  = 5 * time.Minute
)

type beat int

const (
	rest  beat = iota // nothing to do
	wire              // renew the claim
	letGo             // give the memory free, once
)

// nextBeat decides what a heartbeat does when the last call was idle ago and the memory is claimed or not.
func nextBeat(idle time.Duration, claimed bool) beat {
	switch {
	case idle < heartbeatAfter:
		return wire
	case claimed:
		return letGo
	default:
		return rest
	}
}
