//go:build metalsim && linux

package simulator

/*
#include <stdlib.h>
#include "colibri_sim.h"
*/
import "C"

import (
	"fmt"
	"strings"
	"unsafe"
)

// ResidencySets says what the simulated system knows of residency sets.
type ResidencySets int

const (
	Available   ResidencySets = iota
	Unavailable               // newResidencySetWithDescriptor gives nil
	Unknown                   // macOS 14: the device does not have the method
)

// Options describe the machine and how it behaves; the zero value is a fast, orderly one without limits.
type Options struct {
	Strict          bool // check every access of every kernel; takes effect for libraries compiled afterwards
	Seed            uint64
	MaxBufferLength uint64
	WorkingSet      uint64
	NoDevice        bool
	ResidencySets   ResidencySets
	Collect         bool   // reports are kept, not printed
	GPUClockFactor  uint64 // command buffers report so many times the GPU time they took; 0: 1
}

func flag(b bool) C.int {
	if b {
		return 1
	}
	return 0
}

// Configure sets the machine that the next MTLCreateSystemDefaultDevice finds and forgets reports, counts and faults.
func Configure(o Options) {
	c := C.colibri_sim_options{
		strict: flag(o.Strict), seed: C.uint64_t(o.Seed), max_buffer_length: C.uint64_t(o.MaxBufferLength), working_set: C.uint64_t(o.WorkingSet),
		no_device: flag(o.NoDevice), residency_sets: C.int(o.ResidencySets), collect: flag(o.Collect), gpu_clock_factor: C.uint64_t(o.GPUClockFactor),
	}
	C.colibri_sim_configure(&c)
}

// Reports are the validator's findings since the last Configure or Clear.
func Reports() []string {
	reports := make([]string, int(C.colibri_sim_report_count()))
	for i := range reports {
		n := C.colibri_sim_report(C.size_t(i), nil, 0)
		text := (*C.char)(C.malloc(n + 1))
		C.colibri_sim_report(C.size_t(i), text, n+1)
		reports[i] = C.GoString(text)
		C.free(unsafe.Pointer(text))
	}
	return reports
}

// Clear forgets reports.
func Clear() { C.colibri_sim_clear_reports() }

// LiveObjects counts Metal objects that exist now; kind is "MTLBuffer" for instance, or empty for all.
func LiveObjects(kind string) int64 {
	if kind == "" {
		return int64(C.colibri_sim_live_objects(nil))
	}
	c := C.CString(kind)
	defer C.free(unsafe.Pointer(c))
	return int64(C.colibri_sim_live_objects(c))
}

// Calls counts calls of a method since the last Configure: "useResource:usage:", "MTLResidencySet.commit".
func Calls(method string) uint64 {
	c := C.CString(method)
	defer C.free(unsafe.Pointer(c))
	return uint64(C.colibri_sim_calls(c))
}

// FailCommandBuffer lets the command buffer committed after `after` others end with an error of MTLCommandBufferErrorDomain.
func FailCommandBuffer(after uint64, code int) {
	C.colibri_sim_fail_command_buffer(C.uint64_t(after), C.int(code))
}

// FailAllocation lets a newBuffer… give nil.
func FailAllocation(after uint64) { C.colibri_sim_fail_allocation(C.uint64_t(after)) }

// FailPipeline lets the pipeline of one kernel fail to build; empty for none.
func FailPipeline(kernel string) {
	c := C.CString(kernel)
	defer C.free(unsafe.Pointer(c))
	C.colibri_sim_fail_pipeline(c)
}

// LoseDevice lets every command buffer fail from now on.
func LoseDevice(lost bool) { C.colibri_sim_lose_device(flag(lost)) }

// Hold lets committed command buffers wait.
func Hold(held bool) { C.colibri_sim_hold(flag(held)) }

// Check is an error that lists the validator's findings, if there are any, and forgets them.
func Check() error {
	reports := Reports()
	Clear()
	if len(reports) == 0 {
		return nil
	}
	return fmt.Errorf("the Metal validator has %d reports:\n%s", len(reports), strings.Join(reports, "\n"))
}
