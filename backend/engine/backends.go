package engine

import (
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"

	"colibri/backend/compute"
	"colibri/backend/cpu"
	"colibri/backend/metal"
)

// opener starts a backend. Where a machine cannot run it, the error says why.
type opener func() (compute.Backend, error)

var (
	openersMu sync.Mutex
	openers   = map[string]opener{"cpu": func() (compute.Backend, error) { return cpu.New(min(threads(), cpu.MaxThreads)) }}
)

// On a Mac whose GPU cannot be used, opening the backend says why; other systems have no Metal to speak of.
func init() {
	if runtime.GOOS == "darwin" || metal.Available() {
		registerBackend("metal", openMetal)
	}
}

// openMetal opens the GPU with the CPU behind it: what a command buffer leaves undone is repeated there, and counted (telemetry.GPU).
func openMetal() (compute.Backend, error) {
	fallback, err := cpu.New(min(threads(), cpu.MaxThreads))
	if err != nil {
		return nil, err
	}
	fallback.KeepActivations() // as the GPU does
	options := metal.FromEnvironment()
	options.Fallback = fallback
	gpu, err := metal.OpenWith(options)
	if err != nil {
		return nil, errors.Join(err, fallback.Close())
	}
	return gpu, nil
}

func registerBackend(name string, open opener) {
	openersMu.Lock()
	defer openersMu.Unlock()
	openers[name] = open
}

// Backends lists the names that Options.Backend accepts beside "auto".
func Backends() []string {
	openersMu.Lock()
	defer openersMu.Unlock()
	return slices.Sorted(maps.Keys(openers))
}

// OpenBackend starts a backend by the name it was registered with.
func OpenBackend(name string) (compute.Backend, error) {
	openersMu.Lock()
	open := openers[name]
	openersMu.Unlock()
	if open == nil {
		return nil, fmt.Errorf("this build has no backend %q; use %s or auto", name, strings.Join(Backends(), ", "))
	}
	return open()
}

// chooseBackend opens the named backend, or the best one that has kernels for every weight. check says what a backend
// lacks, "" if nothing. notice tells the user why the first choice was not taken: never silently the slower one.
func chooseBackend(name string, check func(compute.Backend) string) (backend compute.Backend, notice string, err error) {
	try := func(name string) (compute.Backend, error) {
		b, err := OpenBackend(name)
		if err != nil {
			return nil, fmt.Errorf("the %s backend cannot be used: %w", name, err)
		}
		if lack := check(b); lack != "" {
			return nil, errors.Join(fmt.Errorf("the %s backend cannot be used: %s; convert the model to another format", name, lack), b.Close())
		}
		return b, nil
	}
	switch name {
	case "", "auto":
		if slices.Contains(Backends(), "metal") {
			backend, err := try("metal")
			if err == nil {
				return backend, "", nil
			}
			notice = fmt.Sprintf("The model runs on the CPU: %v.", err)
		}
		backend, err = try("cpu")
		return backend, notice, err
	default:
		backend, err = try(name)
		return backend, "", err
	}
}
