package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
)

// byteSize is a flag value such as 600MB, 8G, 12.5GiB or a plain number of bytes. Units are powers of 1000, with an i powers of 1024: a
// limit is then never read as more than was meant.
type byteSize int64

func (s *byteSize) String() string { return formatBytes(int64(*s)) }

func (s *byteSize) Set(text string) error {
	n, err := parseBytes(text)
	*s = byteSize(n)
	return err
}

func parseBytes(text string) (int64, error) {
	t := strings.TrimSuffix(strings.ToUpper(strings.TrimSpace(text)), "B")
	base := 1000.0
	if binary := strings.TrimSuffix(t, "I"); binary != t {
		t, base = binary, 1024
	}
	unit := 1.0
	if t != "" {
		if power := strings.IndexByte("KMGT", t[len(t)-1]); power >= 0 {
			unit, t = math.Pow(base, float64(power+1)), strings.TrimSpace(t[:len(t)-1])
		}
	}
	number, err := strconv.ParseFloat(t, 64)
	bytes := number * unit
	if err != nil || !(bytes >= 1 && bytes < math.MaxInt64/2) {
		return 0, fmt.Errorf("%q is not a size; write it like 600MB or 8G", text)
	}
	return int64(bytes), nil
}

func formatBytes(n int64) string {
	units := []string{"bytes", "kB", "MB", "GB", "TB"}
	value, unit := float64(n), 0
	for value >= 1000 && unit < len(units)-1 {
		value, unit = value/1000, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.4g %s", value, units[unit])
}

// readIDs reads token ids from a JSON file: a list, or an object whose "ids" or "prompt" is one.
func readIDs(path string, vocabulary int) ([]int32, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var ids []int32
	if json.Unmarshal(content, &ids) != nil {
		var object struct{ IDs, Prompt []int32 }
		if err := json.Unmarshal(content, &object); err != nil {
			return nil, fmt.Errorf("%s holds no list of token ids: %w", path, err)
		}
		ids = object.IDs
		if ids == nil {
			ids = object.Prompt
		}
	}
	if len(ids) == 0 {
		return nil, fmt.Errorf("%s holds no token ids", path)
	}
	for i, id := range ids {
		if id < 0 || int(id) >= vocabulary {
			return nil, fmt.Errorf("%s: token %d at place %d is outside the vocabulary of %d", path, id, i, vocabulary)
		}
	}
	return ids, nil
}
