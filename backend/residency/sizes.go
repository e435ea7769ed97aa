package residency

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
)

// Sizes remembers, for each model on each machine, the expert memory that gave the most tokens a second where that was less than the limit
// allows: the next session begins there, and the governor goes on from it.
type Sizes struct {
	Version int             `json:"version"`
	Best    map[string]Best `json:"best"` // by SizeKey
}

// Best is a size that was measured.
type Best struct {
	SlotBytes   int64   `json:"slotBytes"`
	TokenMillis float64 `json:"tokenMillis"`
}

// SizeKey names a model on a machine: model is the container's fingerprint or path, machine the hardware and its memory.
func SizeKey(model, machine string) string { return model + "\n" + machine }

const (
	// SizesFile is the name of the learned sizes in a model's directory.
	SizesFile = ".colibri_sizes"

	sizesVersion  = 1
	maxSizesBytes = 1 << 20
	maxSizes      = 1000
)

// ReadSizes reads the sizes at path. What is missing is empty; what is damaged is empty too, and notice says why.
func ReadSizes(path string) (sizes *Sizes, notice string) {
	empty := &Sizes{Version: sizesVersion, Best: map[string]Best{}}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, ""
	}
	if err == nil {
		defer f.Close()
		var content []byte
		if content, err = io.ReadAll(io.LimitReader(f, maxSizesBytes+1)); err == nil {
			if sizes, err = parseSizes(content); err == nil {
				return sizes, ""
			}
		}
	}
	return empty, fmt.Sprintf("the learned sizes in %s are ignored: %v", path, err)
}

func parseSizes(content []byte) (*Sizes, error) {
	if len(content) > maxSizesBytes {
		return nil, fmt.Errorf("they take more than %s", formatBytes(maxSizesBytes))
	}
	var s Sizes
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, err
	}
	if s.Version != sizesVersion {
		return nil, fmt.Errorf("they are of version %d", s.Version)
	}
	for _, b := range s.Best {
		if b.SlotBytes <= 0 || !(b.TokenMillis > 0) {
			return nil, errors.New("a size is out of range")
		}
	}
	if s.Best == nil {
		s.Best = map[string]Best{}
	}
	return &s, nil
}

// Put remembers a measured size. Far more models than anyone has are forgotten all at once.
func (s *Sizes) Put(key string, b Best) {
	if len(s.Best) >= maxSizes {
		clear(s.Best)
	}
	s.Best[key] = b
}

// Write replaces the file at path.
func (s *Sizes) Write(path string) error {
	content, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("learned sizes: %w", err)
	}
	return replaceFile(path, append(content, '\n'))
}
