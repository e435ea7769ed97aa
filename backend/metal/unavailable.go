//go:build !(darwin && cgo) && !metalsim

package metal

import (
	"errors"

	"colibri/backend/compute"
)

// Backend does not exist on this system; Open never returns one.
type Backend struct{ compute.Backend }

var errUnavailable = errors.New("metal: not available on this system: Metal is part of macOS")

// OpenWith fails: this system has no Metal.
func OpenWith(Options) (*Backend, error) { return nil, errUnavailable }

// Available says whether Open can succeed.
func Available() bool { return false }

// Counters are zero.
func (*Backend) Counters() Counters { return Counters{} }
