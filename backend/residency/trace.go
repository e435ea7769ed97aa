package residency

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
)

// Step is one line of a routing trace: the experts that one token used in one layer.
type Step struct {
	Token   int     `json:"token"`
	Layer   int     `json:"layer"`
	Experts []int32 `json:"experts"`
}

// Trace is a recorded run: the steps in the order in which they happened, layers in the model's order for each token.
type Trace struct {
	Shape Shape // the smallest that holds all steps
	Steps []Step
}

const (
	maxTraceLayers  = 4096
	maxTraceExperts = 1 << 16
	maxTraceLine    = 1 << 20
)

// ReadTrace reads a trace of one JSON object a line, as `colibri run --trace` writes it.
func ReadTrace(r io.Reader) (*Trace, error) {
	t := &Trace{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxTraceLine)
	for n := 1; lines.Scan(); n++ {
		if len(lines.Bytes()) == 0 {
			continue
		}
		var s Step
		if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
			return nil, fmt.Errorf("line %d of the trace is not {\"token\":n,\"layer\":l,\"experts\":[…]}: %w", n, err)
		}
		if s.Layer < 0 || s.Layer >= maxTraceLayers {
			return nil, fmt.Errorf("line %d of the trace names layer %d", n, s.Layer)
		}
		slices.Sort(s.Experts)
		s.Experts = slices.Compact(s.Experts)
		for _, e := range s.Experts {
			if e < 0 || e >= maxTraceExperts {
				return nil, fmt.Errorf("line %d of the trace names expert %d", n, e)
			}
			t.Shape.Experts = max(t.Shape.Experts, int(e)+1)
		}
		t.Shape.Layers = max(t.Shape.Layers, s.Layer+1)
		t.Steps = append(t.Steps, s)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("the trace cannot be read: %w", err)
	}
	if len(t.Steps) == 0 {
		return nil, errors.New("the trace is empty")
	}
	return t, nil
}

// WriteStep writes one line of a trace.
func WriteStep(w io.Writer, s Step) error {
	line, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("a trace line: %w", err)
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
