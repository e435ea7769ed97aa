// Package residency keeps the routed experts of a model within a memory limit. An expert lives in a file; when the
// router asks for it, it is read into a slot of large anonymous mappings (the arena) and handed out as a lease;
// it stays there until something more useful needs the slot.
//
// The package is in three rings. Values and pure functions: Policy and its replay over recorded traces, Plan (how much
// memory to use on a machine), Govern (how that changes while running), usage histories. The Store: slots, leases and
// loaders under one lock. Thin edges per system: direct file reads, mappings, memory signals.
//
// It must never know what an expert computes, which backend computes it (a Registrar is told about memory,
// no more), or what a token is; and what it does must never change a result, only when it is ready.
package residency
