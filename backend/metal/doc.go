// Package metal executes the operations of a forward pass on an Apple GPU: it is the compute.Backend over colibri_metal.h, whose
// Objective-C implementation and shaders lie beside it. Weights, caches and activations are used where they are (unified memory, no
// copies); memory that was registered is kept resident by one residency set. The package knows nothing of files, of tokens, of
// which experts are in memory, or of the CPU backend, except as the compute.Backend that it may be given to repeat what a failed
// command buffer left undone.
//
// It is built on macOS, and on Linux with the tag metalsim, where backend/metal/simulator stands in for the system.
package metal
