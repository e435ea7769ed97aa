package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Sweep removes every file but those put away under the names: what conversations leave that are gone for good.
func (k KVStore) Sweep(names []string) error {
	living := make(map[string]bool, len(names))
	for _, name := range names {
		living[k.path(name)] = true
	}
	entries, err := os.ReadDir(k.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		path := filepath.Join(k.Dir, e.Name())
		if living[path] || !strings.HasSuffix(path, kvSuffix) {
			continue
		}
		if removal := os.Remove(path); removal != nil && !errors.Is(removal, fs.ErrNotExist) {
			err = errors.Join(err, removal)
		}
	}
	return err
}
