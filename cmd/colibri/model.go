package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"colibri/backend/bundled"
	"colibri/backend/engine"
)

// modelFlags are the options of every command that loads a model.
type modelFlags struct {
	dir, backend string
	memory       byteSize
	drafts       engine.DraftMode // not an option: for measurements
	precise      bool             // not an option: for evaluations
}

func (m *modelFlags) register(flags *flag.FlagSet) {
	flags.StringVar(&m.dir, "model", "", "`DIR` of a container or checkpoint (default: the bundled model)")
	flags.StringVar(&m.backend, "backend", "auto", "auto, cpu or metal")
	flags.Var(&m.memory, "memory", "the most memory the model may take, such as 600MB or 12G (default: no limit)")
}

// path is the model's directory; the bundled model is unpacked if need be.
func (m *modelFlags) path(ctx context.Context) (string, error) {
	if m.dir != "" {
		return m.dir, nil
	}
	return bundled.Path(ctx)
}

// load brings the model into memory. Progress is shown on a terminal when loading takes more than a moment.
func (m *modelFlags) load(ctx context.Context, notes io.Writer) (*engine.Model, error) {
	dir, err := m.path(ctx)
	if err != nil {
		return nil, err
	}
	began, shown := time.Now(), false
	progress := func(p engine.Progress) {
		if !isTerminal(notes) || time.Since(began) < time.Second || p.TotalBytes == 0 {
			return
		}
		shown = true
		fmt.Fprintf(notes, "\rloading %3d %% of %s", 100*p.DoneBytes/p.TotalBytes, formatBytes(p.TotalBytes))
	}
	model, err := engine.Load(ctx, dir, engine.Options{Backend: m.backend, MemoryBytes: int64(m.memory), Drafts: m.drafts, Precise: m.precise, Progress: progress})
	if shown {
		fmt.Fprint(notes, "\r\x1b[K")
	}
	if err != nil {
		return nil, err
	}
	for _, notice := range model.Stats().Notices {
		fmt.Fprintln(notes, "note:", notice)
	}
	return model, nil
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
