// Package simulator is a Metal implementation for Linux, for tests: the Objective-C host in backend/metal runs on it unchanged, and the
// shaders that ship are executed on the CPU under a strict validator. The Metal classes live in a shared library that `make -C
// backend/metal/simulator` builds; this package steers it from Go and reads what it saw. It must never be part of a program that
// people run: only builds with the tag metalsim contain it. See README.md.
package simulator
