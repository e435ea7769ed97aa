// Package bundled carries the model that ships inside the program and puts it on disk, where the engine can read it like any
// other container. It knows nothing of what is in the files.
package bundled

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

//go:embed all:model
var files embed.FS

// sumsName lists "hex  name" for every file of the container, as sha256sum prints it. Checking the unpacked copy then reads
// only that copy, never the embedded bytes (start-up time).
const sumsName = "SHA256SUMS"

// Name is what people call the bundled model.
const Name = "Colibri Mini"

// Path returns the directory of the bundled container in the user's cache, unpacking it on first use and repairing files
// that are missing or damaged. Several processes may call it at once.
func Path(ctx context.Context) (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir() // no home directory: a service account, a bare container
	}
	model, err := fs.Sub(files, "model")
	if err != nil {
		return "", err
	}
	return unpack(ctx, model, filepath.Join(cache, "Colibri"))
}

// unpack puts the container in model below root, in a folder named by its content: versions of the program do not fight
// over one folder.
func unpack(ctx context.Context, model fs.FS, root string) (string, error) {
	list, err := fs.ReadFile(model, sumsName)
	if err != nil {
		return "", fmt.Errorf("this build carries no bundled model: %w", err)
	}
	version := sha256.Sum256(list)
	dir := filepath.Join(root, "model-"+hex.EncodeToString(version[:6]), "Colibri Mini.colibri")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("the bundled model needs a folder to be unpacked into: %w", err)
	}
	lines := bufio.NewScanner(bytes.NewReader(list))
	for lines.Scan() {
		if err := ctx.Err(); err != nil {
			return "", err
		}
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if !ok || !filepath.IsLocal(name) {
			return "", fmt.Errorf("the bundled model's list of files is damaged at %q", lines.Text())
		}
		if err := ensure(model, name, sum, filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	return dir, lines.Err()
}

// ensure leaves a file with the given sum at path. The write goes to a name of its own and is renamed, so that neither a crash nor a
// second process can leave half a file.
func ensure(model fs.FS, name, sum, path string) error {
	if found, err := fileSum(path); err == nil && found == sum {
		return nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the unpacked bundled model cannot be read: %w", err)
	}
	content, err := packed(model, name)
	if err != nil {
		return fmt.Errorf("the bundled model's %s cannot be unpacked: %w", name, err)
	}
	defer content.Close()
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+name+"-*")
	if err != nil {
		return fmt.Errorf("unpacking the bundled model: %w", err)
	}
	defer os.Remove(tmp.Name())
	h := sha256.New()
	_, err = io.Copy(io.MultiWriter(tmp, h), content)
	if err == nil && hex.EncodeToString(h.Sum(nil)) != sum {
		err = errors.New("its content is not what this build was made with")
	}
	if err == nil {
		err = tmp.Chmod(0o644)
	}
	if err = errors.Join(err, tmp.Close()); err != nil {
		return fmt.Errorf("unpacking the bundled model (is the disk full?): %w", err)
	}
	if err := os.Rename(tmp.Name(), path); err != nil {
		return fmt.Errorf("unpacking the bundled model: %w", err)
	}
	return nil
}

// packed opens a file of the model, which is kept either as it is or gzipped under the name with ".gz": expert records are
// padded to pages and 4-bit weights have less than 4 bits of entropy, so a fifth of the shards' bytes need not ship.
func packed(model fs.FS, name string) (io.ReadCloser, error) {
	f, err := model.Open(name)
	if !errors.Is(err, fs.ErrNotExist) {
		return f, err
	}
	if f, err = model.Open(name + ".gz"); err != nil {
		return nil, err
	}
	return gzip.NewReader(f)
}

func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
