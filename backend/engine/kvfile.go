package engine

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
	"unsafe"
)

// KVStore keeps the keys and values of conversations on disk, so that they go on after a restart without being computed again.
// Numbers are kept as they are (float32): a conversation that was put away gives the same words as one that was not.
//
// A file is a header and chunks, each of some positions with their tokens and a checksum. Saving appends the positions that are
// new; where the conversation was edited, the file is cut at the first chunk that differs. What a crash or a bad disk damaged ends the
// file there; a file of other weights, another build or another kind of cache is ignored, and replaced by the next save.
type KVStore struct {
	Dir        string
	LimitBytes int64 // of all files together; the longest unused are removed first. 0: no limit
}

const (
	kvMagic       = "COLIKV\x00\x01"
	kvSuffix      = ".kv"
	kvHeaderBytes = len(kvMagic) + sha256.Size
	kvChunkBytes  = 12 // start, count, checksum of what follows, each 32 bits little-endian
	// kvChunkTokens bounds what one damaged byte can cost.
	kvChunkTokens = 512
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (k KVStore) path(name string) string {
	sum := sha256.Sum256([]byte(name))
	return filepath.Join(k.Dir, hex.EncodeToString(sum[:12])+kvSuffix)
}

// kvLayout is what the rows of a position are, the same for all positions of a file.
type kvLayout struct {
	widths []cacheWidths // by layer
	header []byte
}

// kvLayoutOf describes the caches of a model's sessions; the prediction layer's belongs to them while a session drafts.
func kvLayoutOf(m *Model, drafting bool) kvLayout {
	c := m.config
	layers := c.Layers
	if drafting {
		layers++
	}
	l := kvLayout{}
	for i := range layers {
		l.widths = append(l.widths, widthsOf(c, i))
	}
	key := sha256.Sum256(fmt.Appendf(nil, "%s\n%s\n%v", m.identity, buildName(), l.widths))
	l.header = append([]byte(kvMagic), key[:]...)
	return l
}

// buildName tells builds apart whose arithmetic may differ.
func buildName() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	name := []string{info.GoVersion, info.Main.Version}
	for _, setting := range info.Settings {
		if strings.HasPrefix(setting.Key, "vcs.") {
			name = append(name, setting.Value)
		}
	}
	return strings.Join(name, " ")
}

// rowBytes is what one position takes in a file, its token included.
func (l *kvLayout) rowBytes() int64 {
	n := 1
	for _, w := range l.widths {
		n += w.latent + w.rope + w.index + w.keys + w.values
	}
	return int64(n) * 4
}

// parts calls visit with every stretch of memory that holds the positions of a chunk, in the order of the file.
func (l *kvLayout) parts(k *kvCache, start, count int, visit func([]byte) error) error {
	for i, w := range l.widths {
		view := &k.layers[i].view
		for _, p := range []struct {
			rows  []float32
			width int
		}{{view.Latent, w.latent}, {view.Rope, w.rope}, {view.Index, w.index}, {view.Keys, w.keys}, {view.Values, w.values}} {
			if p.width == 0 {
				continue
			}
			if err := visit(bytesOf(p.rows[start*p.width : (start+count)*p.width])); err != nil {
				return err
			}
		}
	}
	return nil
}

func bytesOf[T float32 | int32](values []T) []byte {
	if len(values) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(values))), len(values)*4)
}

// SaveKV puts the session's keys and values away under a name (a conversation's id).
func (s *Session) SaveKV(ctx context.Context, store KVStore, name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return errClosed
	}
	n, err := s.settledTokens(ctx)
	n = min(n, s.tied) // the rows after that depend on what follows
	if err != nil || n == 0 {
		return err
	}
	path := store.path(name)
	if err := store.save(s, path, n); err != nil {
		return fmt.Errorf("the conversation's memory could not be kept on disk, it will be computed again: %w", err)
	}
	return store.evict(path)
}

// settledTokens is how many positions are complete in all layers. The prediction layer lags behind by the last token, and is brought
// up to it; a longer gap means that it does not pay on this machine, and it is given up.
func (s *Session) settledTokens(ctx context.Context) (int, error) {
	if !s.drafts() || len(s.tokens) == 0 {
		return len(s.tokens), nil
	}
	if len(s.tokens)-s.draft.rows > 2*headRows {
		s.draft = drafting{stopped: true}
		return len(s.tokens), nil
	}
	last := s.tokens[len(s.tokens)-1]
	hidden := slices.Clone(s.draft.hidden[max(0, len(s.draft.hidden)-s.model.config.Hidden):])
	if s.draft.rows < len(s.tokens)-1 {
		// All but the last token's row, whose successor is not known.
		all := s.tokens
		s.tokens = all[:len(all)-1]
		err := s.model.turn(ctx, func() error {
			_, err := s.catchUp(ctx, last)
			return err
		})
		s.tokens = all
		if err != nil {
			return 0, err
		}
		s.draft.hidden = hidden
	}
	return s.draft.rows, nil
}

func (k KVStore) save(s *Session, path string, tokens int) error {
	if err := os.MkdirAll(k.Dir, 0o700); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	layout := kvLayoutOf(s.model, s.drafts())
	trusted := 0
	if s.kept.path == path {
		trusted = min(s.kept.tokens, tokens)
	}
	start, end, err := layout.common(f, s.tokens[:trusted])
	if err != nil {
		return err
	}
	if err := f.Truncate(end); err != nil {
		return err
	}
	if end == 0 {
		if _, err := f.WriteAt(layout.header, 0); err != nil {
			return err
		}
		end = int64(kvHeaderBytes)
	}
	for start < tokens {
		count := min(kvChunkTokens, tokens-start)
		if err := layout.writeChunk(f, end, &s.cache, s.tokens[start:start+count], start); err != nil {
			return err
		}
		start += count
		end += kvChunkBytes + int64(count)*layout.rowBytes()
	}
	if err := f.Close(); err != nil {
		return err
	}
	s.kept = keptFile{path, tokens}
	return nil
}

// common finds how much of a file can stay: the number of leading tokens it has in whole chunks, and where these end.
func (l *kvLayout) common(f *os.File, tokens []int32) (n int, end int64, err error) {
	header := make([]byte, kvHeaderBytes)
	if _, err := f.ReadAt(header, 0); err != nil && err != io.EOF {
		return 0, 0, err
	}
	if string(header) != string(l.header) {
		return 0, 0, nil
	}
	info, err := f.Stat()
	if err != nil {
		return 0, 0, err
	}
	end = int64(kvHeaderBytes)
	for {
		c, err := l.chunkAt(f, end, info.Size(), n)
		if err != nil {
			return 0, 0, err
		}
		if c == nil || n+len(c.ids) > len(tokens) || !slices.Equal(c.ids, tokens[n:n+len(c.ids)]) {
			return n, end, nil
		}
		n += len(c.ids)
		end = c.end
	}
}

// keptFile says how much of which file a session wrote or read itself. The rest may be damaged, and is not added to.
type keptFile struct {
	path   string
	tokens int
}

type kvChunk struct {
	ids  []int32
	sum  uint32
	data int64 // where the rows begin
	end  int64
}

// chunkAt reads the head of a chunk that must begin with position start; nil where the file ends or is damaged.
func (l *kvLayout) chunkAt(f io.ReaderAt, at, size int64, start int) (*kvChunk, error) {
	var head [kvChunkBytes]byte
	if at+kvChunkBytes > size {
		return nil, nil
	}
	if _, err := f.ReadAt(head[:], at); err != nil {
		return nil, err
	}
	count := int64(binary.LittleEndian.Uint32(head[4:]))
	end := at + kvChunkBytes + count*l.rowBytes()
	if binary.LittleEndian.Uint32(head[:]) != uint32(start) || count == 0 || count > kvChunkTokens || end > size {
		return nil, nil
	}
	c := &kvChunk{ids: make([]int32, count), sum: binary.LittleEndian.Uint32(head[8:]), data: at + kvChunkBytes + 4*count, end: end}
	if _, err := f.ReadAt(bytesOf(c.ids), at+kvChunkBytes); err != nil {
		return nil, err
	}
	return c, nil
}

func (l *kvLayout) writeChunk(f *os.File, at int64, cache *kvCache, ids []int32, start int) error {
	sum := crc32.Update(0, castagnoli, bytesOf(ids))
	if _, err := f.WriteAt(bytesOf(ids), at+kvChunkBytes); err != nil {
		return err
	}
	to := at + kvChunkBytes + 4*int64(len(ids))
	err := l.parts(cache, start, len(ids), func(b []byte) error {
		sum = crc32.Update(sum, castagnoli, b)
		_, err := f.WriteAt(b, to)
		to += int64(len(b))
		return err
	})
	if err != nil {
		return err
	}
	// The head comes last: a chunk cut short by a crash has none, or a checksum that does not match.
	var head [kvChunkBytes]byte
	binary.LittleEndian.PutUint32(head[:], uint32(start))
	binary.LittleEndian.PutUint32(head[4:], uint32(len(ids)))
	binary.LittleEndian.PutUint32(head[8:], sum)
	_, err = f.WriteAt(head[:], at)
	return err
}

// LoadKV fills an empty session with what SaveKV put away under the name, and returns how many tokens it now holds: 0 if there
// is nothing usable. Generate then reuses what its prompt has in common with them.
func (s *Session) LoadKV(ctx context.Context, store KVStore, name string) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed
	}
	if len(s.tokens) > 0 {
		return 0, errors.New("the session already holds a conversation; load into a new one")
	}
	return s.loadKV(ctx, store.path(name))
}

// resumeGain is the number of prompt tokens that a file must save before it is worth reading.
const resumeGain = 32

// ResumeKV looks for the conversation on disk that begins as prompt does, and takes it over if it saves more than what the session
// holds. It returns how many tokens the session then holds of it, 0 if it was left alone.
func (s *Session) ResumeKV(ctx context.Context, store KVStore, prompt []int32) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return 0, errClosed
	}
	paths, err := filepath.Glob(filepath.Join(store.Dir, "*"+kvSuffix))
	if err != nil {
		return 0, err
	}
	best, path := commonPrefix(s.tokens, prompt)+resumeGain-1, ""
	for _, p := range paths {
		if n := s.promises(p, prompt); n > best {
			best, path = n, p
		}
	}
	if path == "" {
		return 0, nil
	}
	s.cut(0)
	return s.loadKV(ctx, path)
}

// promises is how many of the prompt's first tokens a file claims to hold; only its chunks' heads are read.
func (s *Session) promises(path string, prompt []int32) int {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	info, err := f.Stat()
	header := make([]byte, kvHeaderBytes)
	if _, e := io.ReadFull(f, header); err != nil || e != nil {
		return 0
	}
	n := 0
	for _, layout := range s.kvLayouts() {
		for at := int64(kvHeaderBytes); string(header) == string(layout.header); {
			c, err := layout.chunkAt(f, at, info.Size(), n)
			if err != nil || c == nil {
				break
			}
			same := commonPrefix(c.ids, prompt[min(n, len(prompt)):])
			n += same
			if same < len(c.ids) {
				break
			}
			at = c.end
		}
	}
	return n
}

// kvLayouts are those a file may have: with the prediction layer's rows where the model has that layer, and without.
func (s *Session) kvLayouts() []kvLayout {
	without := kvLayoutOf(s.model, false)
	if !s.model.drafts {
		return []kvLayout{without}
	}
	return []kvLayout{kvLayoutOf(s.model, true), without}
}

// loadKV fills an empty session from a file.
func (s *Session) loadKV(ctx context.Context, path string) (int, error) {
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for i, layout := range s.kvLayouts() {
		if err := s.model.turn(ctx, func() error { return layout.read(ctx, f, s) }); err != nil {
			s.cut(0)
			return 0, fmt.Errorf("the conversation's memory on disk cannot be used, it will be computed again: %w", err)
		}
		if len(s.tokens) == 0 {
			continue
		}
		if s.draft.stopped = s.model.drafts && i > 0; s.drafts() {
			s.draft.rows = len(s.tokens)
		}
		s.kept = keptFile{path, len(s.tokens)}
		// Eviction goes by time of last use.
		return len(s.tokens), os.Chtimes(path, time.Time{}, time.Now())
	}
	return 0, nil
}

// read takes over the chunks of a file until one is missing, damaged, or more than the model holds.
func (l *kvLayout) read(ctx context.Context, f *os.File, s *Session) error {
	header := make([]byte, kvHeaderBytes)
	if _, err := io.ReadFull(f, header); err != nil || string(header) != string(l.header) {
		_, err := f.Seek(0, io.SeekStart)
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	for at := int64(kvHeaderBytes); ; {
		start := len(s.tokens)
		c, err := l.chunkAt(f, at, info.Size(), start)
		if err != nil {
			return err
		}
		if c == nil || start+len(c.ids) > s.model.config.MaxPositions || s.model.checkIDs(c.ids) != nil {
			return nil
		}
		if err := s.cache.reserve(ctx, start+len(c.ids), start); err != nil {
			return err
		}
		sum, from := crc32.Update(0, castagnoli, bytesOf(c.ids)), c.data
		err = l.parts(&s.cache, start, len(c.ids), func(b []byte) error {
			if _, err := f.ReadAt(b, from); err != nil {
				return err
			}
			from += int64(len(b))
			sum = crc32.Update(sum, castagnoli, b)
			return nil
		})
		if err != nil {
			return err
		}
		if sum != c.sum {
			return nil
		}
		s.tokens = append(s.tokens, c.ids...)
		at = c.end
	}
}

// Remove forgets what was put away under a name.
func (k KVStore) Remove(name string) error {
	if err := os.Remove(k.path(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// evict removes the files used longest ago until all are within the limit; kept goes last.
func (k KVStore) evict(kept string) error {
	if k.LimitBytes <= 0 {
		return nil
	}
	entries, err := os.ReadDir(k.Dir)
	if err != nil {
		return err
	}
	type file struct {
		path  string
		bytes int64
		used  time.Time
	}
	var files []file
	var total int64
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !strings.HasSuffix(e.Name(), kvSuffix) {
			continue // removed meanwhile, or not ours
		}
		f := file{filepath.Join(k.Dir, e.Name()), info.Size(), info.ModTime()}
		if f.path == kept {
			f.used = time.Now().Add(time.Hour)
		}
		files = append(files, f)
		total += f.bytes
	}
	slices.SortFunc(files, func(a, b file) int { return a.used.Compare(b.used) })
	for _, f := range files {
		if total <= k.LimitBytes {
			break
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		total -= f.bytes
	}
	return nil
}
