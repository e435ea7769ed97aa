//go:build metalsim && linux && !asan

package simulator

// #cgo LDFLAGS: -L${SRCDIR}/../../../build/simulator -lcolibri-metal-sim -Wl,-rpath,${SRCDIR}/../../../build/simulator
import "C"

const sanitized = false
