package container

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Span is a run of bytes of one of a container's files.
type Span struct {
	File          int // index into Container.Files
	Offset, Bytes int64
}

// File is one shard. Others may open Path themselves, for direct reads.
type File struct {
	Path  string
	Bytes int64
}

// Weight is a tensor of the model: a matrix, or a vector with one row.
type Weight struct {
	Name          string
	Class         Class
	Layer         int // −1 outside the layers
	Encoding      Encoding
	Rows, Columns int
	Data, Scales  Span // Scales.Bytes is 0 for F32, BF16 and F16
}

// Bytes is what the weight takes on the disk and in memory.
func (w *Weight) Bytes() int64 { return w.Data.Bytes + w.Scales.Bytes }

// Container is an open, completely checked model directory. Its methods may be called from several goroutines.
type Container struct {
	Dir    string
	Config *Config
	Files  []File
	// Notes are sentences for the user about what was found: what is missing without harm, what is unusual.
	Notes []string
	// Ignored are tensors that the model does not use.
	Ignored []string

	weights    map[string]*Weight
	resident   []*Weight // in the order of use
	experts    map[[2]int]*expertSource
	shards     []*shard
	configText []byte
}

// expertSource is where an expert lies: a whole record of our own, or three weights.
type expertSource struct {
	record *Span // the whole record
	layout ExpertLayout
	sum    *uint32 // CRC-32C of the record
	parts  [3]*Weight
}

// Open checks a model directory and describes it. It reads headers, config.json and, where byte counts leave a weight's
// format open, a sample of that weight; nothing large. The files stay open until Close.
func Open(dir string) (*Container, error) {
	c := newContainer(dir)
	if err := c.open(false); err != nil {
		c.Close()
		return nil, fmt.Errorf("%s: %w", dir, err)
	}
	return c, nil
}

func newContainer(dir string) *Container {
	return &Container{Dir: dir, weights: map[string]*Weight{}, experts: map[[2]int]*expertSource{}}
}

// Close closes the files.
func (c *Container) Close() error {
	var errs []error
	for _, s := range c.shards {
		errs = append(errs, s.handle.Close())
	}
	c.shards = nil
	return errors.Join(errs...)
}

// open does the work of Open; only the converter opens what still bears the mark of unfinished work.
func (c *Container) open(unfinished bool) error {
	info, err := os.Stat(c.Dir)
	switch {
	case err != nil:
		return fmt.Errorf("the model folder cannot be opened (%w); check the path", cause(err))
	case !info.IsDir():
		return errors.New("this is a file; give the folder that holds config.json and the .safetensors files")
	}
	if _, err := os.Lstat(filepath.Join(c.Dir, manifestName)); err == nil && !unfinished {
		return errors.New("its conversion was interrupted; run the same conversion again to finish it")
	}
	if c.configText, err = readSmall(c.Dir, "config.json"); err != nil {
		return err
	}
	generation, err := readSmall(c.Dir, "generation_config.json")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if c.Config, err = ParseConfig(c.configText, generation); err != nil {
		return err
	}
	if err := c.openShards(); err != nil {
		return err
	}
	r := &resolver{c: c, tensors: map[string]located{}, stamps: map[string]Encoding{}, records: map[string]ExpertLayout{}, sums: map[string]uint32{}, evidence: newEvidence()}
	return r.run()
}

// cause is a system error without the path, for sentences that name the file themselves.
func cause(err error) error {
	var p *os.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// readSmall reads a JSON or text file of the directory, with the same care as a shard.
func readSmall(dir, name string) ([]byte, error) {
	if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
		return nil, fmt.Errorf("%s is missing (%w); give the folder of a whole model", name, cause(err))
	}
	path, err := within(dir, name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened (%w); check its permissions", name, cause(err))
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", name, err)
	}
	return text, lfsStub(name, text)
}

// maxShards is far above any published model (163 files) and below every limit on open files.
const maxShards = 2000

func (c *Container) openShards() error {
	entries, err := os.ReadDir(c.Dir)
	if err != nil {
		return fmt.Errorf("the model folder cannot be read: %w", err)
	}
	var names []string
	for _, e := range entries {
		// Names that begin with a dot are not shards: macOS leaves "._x.safetensors" beside files copied from other disks.
		if strings.HasSuffix(e.Name(), ".safetensors") && !strings.HasPrefix(e.Name(), ".") {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	switch {
	case len(names) == 0:
		return errors.New("it holds no .safetensors files; give the folder of a whole model")
	case len(names) > maxShards:
		return fmt.Errorf("it holds %d .safetensors files, more than the %d supported", len(names), maxShards)
	}
	for _, name := range names {
		s, err := openShard(c.Dir, name)
		if err != nil {
			return err
		}
		c.shards = append(c.shards, s)
		c.Files = append(c.Files, File{Path: s.path, Bytes: s.bytes})
	}
	return nil
}

// Weight finds a tensor by its name in the checkpoint ("model.norm.weight"), experts included.
func (c *Container) Weight(name string) (Weight, bool) {
	w, ok := c.weights[name]
	if !ok {
		return Weight{}, false
	}
	return *w, true
}

// Resident lists the weights that stay in memory, all but the routed experts, in the order of use.
func (c *Container) Resident() []Weight {
	list := make([]Weight, len(c.resident))
	for i, w := range c.resident {
		list[i] = *w
	}
	return list
}

// ResidentBytes is what the weights of Resident take.
func (c *Container) ResidentBytes() (total int64) {
	for _, w := range c.resident {
		total += w.Bytes()
	}
	return total
}

// Load reads a weight's packed numbers and scales into memory of exactly their sizes.
func (c *Container) Load(w Weight, data []byte, scales []float32) error {
	if int64(len(data)) != w.Data.Bytes || int64(4*len(scales)) != w.Scales.Bytes {
		return fmt.Errorf("weight %q has %d bytes of data and %d of scales, but memory for %d and %d was given", w.Name, w.Data.Bytes, w.Scales.Bytes, len(data), 4*len(scales))
	}
	if err := c.read(w.Data, data); err != nil {
		return fmt.Errorf("weight %q: %w", w.Name, err)
	}
	if err := c.read(w.Scales, bytesOf(scales)); err != nil {
		return fmt.Errorf("the scales of weight %q: %w", w.Name, err)
	}
	return nil
}

// Block reads a weight into fresh memory.
func (c *Container) Block(name string) (Block, error) {
	w, ok := c.weights[name]
	if !ok {
		return Block{}, fmt.Errorf("%s holds no weight %q", c.Dir, name)
	}
	b := Block{Encoding: w.Encoding, Rows: w.Rows, Columns: w.Columns, Data: make([]byte, w.Data.Bytes), Scales: make([]float32, w.Scales.Bytes/4)}
	return b, c.Load(*w, b.Data, b.Scales)
}

// Floats reads a weight, whatever its encoding, as float32: norms, biases, the router.
func (c *Container) Floats(name string) ([]float32, error) {
	b, err := c.Block(name)
	if err != nil {
		return nil, err
	}
	return Dequantise(&b), nil
}

// read fills b from a span. A short read says so: the system's own error may be none.
func (c *Container) read(s Span, b []byte) error {
	if s.Bytes == 0 {
		return nil
	}
	n, err := c.shards[s.File].handle.ReadAt(b, s.Offset)
	if n == len(b) {
		return nil
	}
	if err == io.EOF {
		err = errors.New("the file has become shorter")
	}
	return fmt.Errorf("%s: only %d of %d bytes at %d could be read (%w); check the disk, or download the file again", c.shards[s.File].name, n, len(b), s.Offset, err)
}

// Text reads a small file of the directory (tokenizer.json, chat_template.jinja); os.ErrNotExist is in the error's
// chain when there is none. limitBytes bounds what is accepted.
func (c *Container) Text(name string, limitBytes int64) ([]byte, error) {
	if info, err := os.Stat(filepath.Join(c.Dir, name)); err != nil {
		return nil, fmt.Errorf("%s: %s is missing (%w)", c.Dir, name, cause(err))
	} else if info.Size() > limitBytes {
		return nil, fmt.Errorf("%s: %s has %d bytes, more than the %d a model needs; download it again", c.Dir, name, info.Size(), limitBytes)
	}
	path, err := within(c.Dir, name)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.Dir, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %s cannot be read: %w", c.Dir, name, err)
	}
	if err := lfsStub(name, text); err != nil {
		return nil, fmt.Errorf("%s: %w", c.Dir, err)
	}
	return text, nil
}

// identitySample is read at the beginning, middle and end of each shard's data by Identity.
const identitySample = 16 << 10

// Identity is a stable name of these weights: a hash over the configuration, all headers and samples of the data.
// Caches made with one model are keyed by it; renaming or moving the folder does not change it.
func (c *Container) Identity() (string, error) {
	h := sha256.New()
	h.Write(c.configText)
	sample := make([]byte, identitySample)
	for _, s := range c.shards {
		for _, at := range []int64{0, s.dataStart - identitySample, s.dataStart, (s.dataStart + s.bytes) / 2, s.bytes - identitySample} {
			n, err := s.handle.ReadAt(sample, max(at, 0))
			if err != nil && err != io.EOF {
				return "", fmt.Errorf("%s: %s cannot be read: %w", c.Dir, s.name, err)
			}
			fmt.Fprintf(h, "%d %d %d\n", s.bytes, at, n)
			h.Write(sample[:n])
		}
		for _, t := range s.header.tensors {
			fmt.Fprintf(h, "%q %s %v %d %d\n", t.name, t.dtype, t.shape, t.begin, t.end)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
