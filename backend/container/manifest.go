package container

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// manifestName marks a folder whose conversion has not finished.
const manifestName = "colibri-convert.json"

// manifest is what an interrupted conversion must find unchanged to be continued: the same source and the same choices.
type manifest struct {
	Version    int
	Source     string // Container.Identity
	Formats    map[string]string
	ShardBytes int64
}

// encode gives the manifest's one form; equal manifests are equal bytes.
func (m *manifest) encode() ([]byte, error) { return json.MarshalIndent(m, "", "\t") }

// differences says in words what a manifest on the disk has otherwise.
func (m *manifest) differences(other *manifest) string {
	var d []string
	if other.Source != m.Source || other.Version != m.Version {
		d = append(d, "another source")
	}
	for class, format := range m.Formats {
		if other.Formats[class] != format {
			d = append(d, fmt.Sprintf("%s as %s instead of %s", class, other.Formats[class], format))
		}
	}
	if other.ShardBytes != m.ShardBytes {
		d = append(d, fmt.Sprintf("files of %d bytes instead of %d", other.ShardBytes, m.ShardBytes))
	}
	return strings.Join(d, ", ")
}

// begin makes the output folder ready, or recognises one that the same conversion left unfinished. The returned file is locked: two
// conversions never write to one folder.
func (sw *shardWriter) begin(m *manifest) (*os.File, error) {
	if err := os.MkdirAll(sw.dir, 0o755); err != nil {
		return nil, fmt.Errorf("%s cannot be created (%w); choose another folder", sw.dir, err)
	}
	want, err := m.encode()
	if err != nil {
		return nil, err
	}
	path := filepath.Join(sw.dir, manifestName)
	have, err := os.ReadFile(path)
	switch {
	case err == nil && !bytes.Equal(have, want):
		var other manifest
		if err := json.Unmarshal(have, &other); err != nil {
			return nil, fmt.Errorf("%s is damaged (%w); delete the folder and convert again", path, err)
		}
		return nil, fmt.Errorf("%s holds an unfinished conversion with other settings (%s); use the same settings, or delete the folder", sw.dir, m.differences(&other))
	case err == nil:
	case !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	default:
		if err := sw.requireEmpty(); err != nil {
			return nil, err
		}
		if err := sw.writeSmall(manifestName, want); err != nil {
			return nil, err
		}
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be opened: %w", path, err)
	}
	if err := lock(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s is being written by another conversion; wait for it", sw.dir)
	}
	return f, sw.removeTemporaries()
}

// requireEmpty refuses a folder with anything in it but what a conversion killed at its very start leaves.
func (sw *shardWriter) requireEmpty() error {
	entries, err := os.ReadDir(sw.dir)
	if err != nil {
		return fmt.Errorf("%s cannot be read: %w", sw.dir, err)
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), temporaryPrefix) && e.Name() != ".DS_Store" {
			return fmt.Errorf("%s already holds %s; choose a folder that does not exist yet", sw.dir, e.Name())
		}
	}
	return nil
}

func (sw *shardWriter) removeTemporaries() error {
	left, err := filepath.Glob(filepath.Join(sw.dir, temporaryPrefix+"*"))
	if err != nil {
		return err
	}
	for _, path := range left {
		if err := sw.disk.Remove(path); err != nil {
			return fmt.Errorf("%s, left by an interrupted conversion, cannot be removed: %w", path, err)
		}
	}
	return nil
}

// writeSmall writes a small file whole or not at all.
func (sw *shardWriter) writeSmall(name string, text []byte) error {
	temporary := filepath.Join(sw.dir, temporaryPrefix+name)
	f, err := os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return fmt.Errorf("%s cannot be created (%w); check the permissions of the folder", temporary, err)
	}
	defer f.Close()
	if err := sw.disk.Write(f, text, 0); err != nil {
		return fmt.Errorf("%s cannot be written (%w); check that the disk has room", temporary, err)
	}
	if err := sw.disk.Sync(f); err != nil {
		return fmt.Errorf("%s cannot be brought to the disk: %w", temporary, err)
	}
	return sw.finish(temporary, name)
}
