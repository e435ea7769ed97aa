//go:build metalsim && linux && asan

package simulator

// #cgo LDFLAGS: -L${SRCDIR}/../../../build/simulator-asan -lcolibri-metal-sim -Wl,-rpath,${SRCDIR}/../../../build/simulator-asan
import "C"

const sanitized = true
