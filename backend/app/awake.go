package app

import (
	"os/exec"
	"sync"
)

// awake keeps the system, never the display, from sleeping while an answer is written. It runs the system's own tool as a child: the
// assertion then ends with the child, and the child with this process, whatever happens to either.
type awake struct {
	mu    sync.Mutex
	child *exec.Cmd
}

// set begins or ends it. A system without such a tool sleeps as it likes; answers survive that.
func (k *awake) set(on bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if on == (k.child != nil) {
		return
	}
	if !on {
		_ = k.child.Process.Kill()
		child := k.child
		go func() { _ = child.Wait() }()
		k.child = nil
		return
	}
	cmd := awakeCommand()
	if cmd == nil || cmd.Start() != nil {
		return
	}
	k.child = cmd
}
