package residency

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Usage is how often each expert of a model was used, over all sessions: what a store that opens knows of the past. The file
// beside the model (".coli_usage") is text, one "layer expert count" a line, after two header rows: "-1 layers experts"
// and "-2 version identity", where identity is the FNV-1a hash of the model family's name. Files without header are older
// and accepted. A multi-token-prediction layer counts as layer number layers.
type Usage struct {
	Shape Shape
	Uses  []uint64 // [Layers·Experts]
}

// UsageFile is the history's name in a model's directory.
const UsageFile = ".coli_usage"

const (
	usageVersion  = 1
	maxUsageBytes = 64 << 20
	maxUses       = math.MaxInt64 / 2 // sums of two stay representable
)

// NewUsage is an empty history.
func NewUsage(shape Shape) *Usage {
	return &Usage{Shape: shape, Uses: make([]uint64, shape.Layers*shape.Experts)}
}

// ReadUsage reads the history at path. A history that is missing is empty; one that is damaged or another model's is empty too, and
// notice says why. layers is the number of main layers of the model.
func ReadUsage(path string, shape Shape, layers int, family string) (usage *Usage, notice string) {
	empty := NewUsage(shape)
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return empty, ""
	}
	if err == nil {
		defer f.Close()
		var content []byte
		if content, err = io.ReadAll(io.LimitReader(f, maxUsageBytes+1)); err == nil {
			if usage, err = parseUsage(content, shape, layers, family); err == nil {
				return usage, ""
			}
		}
	}
	return empty, fmt.Sprintf("the usage history %s is ignored: %v", path, err)
}

func parseUsage(content []byte, shape Shape, layers int, family string) (*Usage, error) {
	if len(content) > maxUsageBytes {
		return nil, fmt.Errorf("it is larger than %s", formatBytes(maxUsageBytes))
	}
	u := NewUsage(shape)
	lines := bufio.NewScanner(bytes.NewReader(content))
	for n := 1; lines.Scan(); n++ {
		fields := strings.Fields(lines.Text())
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 3 {
			return nil, fmt.Errorf("line %d is not three numbers", n)
		}
		var v [3]int64
		for i, field := range fields {
			var err error
			if v[i], err = strconv.ParseInt(field, 10, 64); err != nil {
				return nil, fmt.Errorf("line %d is not three numbers", n)
			}
		}
		switch layer, expert, count := v[0], v[1], v[2]; {
		case layer == -1:
			if expert != int64(layers) || count != int64(shape.Experts) {
				return nil, fmt.Errorf("it is of a model of %d layers and %d experts, this one has %d and %d", expert, count, layers, shape.Experts)
			}
		case layer == -2:
			if expert > usageVersion {
				return nil, fmt.Errorf("it was written by a newer version (%d)", expert)
			}
			if count != int64(identityHash(family)) {
				return nil, fmt.Errorf("it belongs to another family of models than %s", family)
			}
		case layer < 0 || layer >= int64(shape.Layers) || expert < 0 || expert >= int64(shape.Experts) || count < 0 || count > maxUses:
			return nil, fmt.Errorf("line %d is out of range", n)
		default:
			at := shape.key(int(layer), int32(expert))
			if u.Uses[at] != 0 {
				return nil, fmt.Errorf("line %d repeats expert %d of layer %d", n, expert, layer)
			}
			u.Uses[at] = uint64(count)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, err
	}
	return u, nil
}

func identityHash(family string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(family))
	return h.Sum32()
}

// Add counts more uses: heat as telemetry.Atlas gives it, of the same shape.
func (u *Usage) Add(heat []uint32) {
	for i := range min(len(heat), len(u.Uses)) {
		u.Uses[i] = min(u.Uses[i]+uint64(heat[i]), maxUses)
	}
}

// Total is the number of uses counted.
func (u *Usage) Total() (n uint64) {
	for _, c := range u.Uses {
		n = min(n+c, maxUses)
	}
	return n
}

// Favourites are the most used experts: half as many as there are slots once the history has 200,000 uses, proportionally fewer
// before, none below 5,000. The policy gives them a head start, from which the present use takes over; slots that were
// closed to everything else cost 2 to 9 % more misses on recorded chats. nil: there are none.
func (u *Usage) Favourites(slots int) []bool {
	total := u.Total()
	n := int(float64(slots) / 2 * min(1, float64(total)/200_000))
	if total < 5_000 || n == 0 {
		return nil
	}
	keys := make([]int, len(u.Uses))
	for k := range keys {
		keys[k] = k
	}
	slices.SortStableFunc(keys, func(a, b int) int { return cmp.Compare(u.Uses[b], u.Uses[a]) })
	favourite := make([]bool, len(u.Uses))
	for _, k := range keys[:min(n, len(keys))] {
		favourite[k] = u.Uses[k] > 0
	}
	return favourite
}

// Write replaces the history at path: a crash leaves the old one or the new one.
func (u *Usage) Write(path string, layers int, family string) error {
	var b bytes.Buffer
	fmt.Fprintf(&b, "-1 %d %d\n-2 %d %d\n", layers, u.Shape.Experts, usageVersion, identityHash(family))
	for key, n := range u.Uses {
		if n > 0 {
			layer, expert := u.Shape.at(key)
			fmt.Fprintf(&b, "%d %d %d\n", layer, expert, n)
		}
	}
	return replaceFile(path, b.Bytes())
}

// replaceFile writes a file under another name and renames it.
func replaceFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", path, err)
	}
	_, err = f.Write(content)
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("%s cannot be written: %w", path, errors.Join(err, os.Remove(f.Name())))
	}
	return nil
}
