package bundled

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"colibri/backend/container"
)

func testModel(contents map[string]string) fs.FS {
	model := fstest.MapFS{}
	var list strings.Builder
	for name, text := range contents {
		model[name] = &fstest.MapFile{Data: []byte(text)}
		sum := sha256.Sum256([]byte(text))
		fmt.Fprintf(&list, "%s  %s\n", hex.EncodeToString(sum[:]), name)
	}
	model[sumsName] = &fstest.MapFile{Data: []byte(list.String())}
	return model
}

func TestUnpackRepairsWhatIsMissingOrDamaged(t *testing.T) {
	contents := map[string]string{"config.json": "{}", "a.safetensors": strings.Repeat("weights", 1000)}
	model, root := testModel(contents), t.TempDir()
	dir, err := unpack(context.Background(), model, root)
	if err != nil {
		t.Fatal(err)
	}
	check := func() {
		t.Helper()
		again, err := unpack(context.Background(), model, root)
		if err != nil || again != dir {
			t.Fatalf("unpack: %q, %v", again, err)
		}
		for name, want := range contents {
			got, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil || string(got) != want {
				t.Fatalf("%s: %d bytes, %v", name, len(got), err)
			}
		}
		entries, _ := os.ReadDir(dir)
		if len(entries) != len(contents) {
			t.Fatalf("left over in %s: %v", dir, entries)
		}
	}
	check()
	weights := filepath.Join(dir, "a.safetensors")
	damaged := []byte(contents["a.safetensors"])
	damaged[3000] ^= 1
	if err := os.WriteFile(weights, damaged, 0o644); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.Truncate(weights, 10); err != nil {
		t.Fatal(err)
	}
	check()
	if err := os.Remove(weights); err != nil {
		t.Fatal(err)
	}
	check()
}

func TestUnpackReadsGzippedFiles(t *testing.T) {
	text := strings.Repeat("weights", 1000)
	model := testModel(map[string]string{"a.safetensors": text}).(fstest.MapFS)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	w.Write([]byte(text))
	w.Close()
	delete(model, "a.safetensors")
	model["a.safetensors.gz"] = &fstest.MapFile{Data: packed.Bytes()}
	dir, err := unpack(context.Background(), model, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(dir, "a.safetensors")); err != nil || string(got) != text {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	packed.Truncate(packed.Len() / 2)
	model["a.safetensors.gz"] = &fstest.MapFile{Data: packed.Bytes()}
	if _, err := unpack(context.Background(), model, t.TempDir()); err == nil {
		t.Fatal("half a file was unpacked")
	}
}

// The model that ships unpacks to exactly what its list of sums says, and ends the list with nothing left over.
func TestTheBundledModelIsWhole(t *testing.T) {
	dir, err := unpack(context.Background(), mustSub(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"config.json", "tokenizer.json", "chat_template.jinja", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Error(err)
		}
	}
	d, err := container.Describe(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range d.Formats {
		want := map[string]string{"experts": "int4-g64", "norms and routers": "f32"}[f.Class]
		if want == "" {
			want = "int8-row"
		}
		if len(f.Formats) != 1 || f.Formats[0] != want {
			t.Errorf("%s are %v, want %s", f.Class, f.Formats, want)
		}
	}
	if d.MTPLayers != 1 || d.ReadsPerExpert != 1 || len(d.Warnings) > 0 || len(d.Ignored) > 0 {
		t.Errorf("%+v", d)
	}
	list, err := fs.ReadFile(mustSub(t), sumsName)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(strings.TrimSpace(string(list)), "\n") {
		sum, name, _ := strings.Cut(line, "  ")
		if got, err := fileSum(filepath.Join(dir, name)); err != nil || got != sum {
			t.Errorf("%s: %s, %v", name, got, err)
		}
	}
}

func mustSub(t *testing.T) fs.FS {
	t.Helper()
	model, err := fs.Sub(files, "model")
	if err != nil {
		t.Fatal(err)
	}
	return model
}

func TestUnpackRefusesContentThatIsNotTheBuilds(t *testing.T) {
	model := testModel(map[string]string{"a": "b"}).(fstest.MapFS)
	model["a"] = &fstest.MapFile{Data: []byte("c")}
	if _, err := unpack(context.Background(), model, t.TempDir()); err == nil || !strings.Contains(err.Error(), "not what this build") {
		t.Fatalf("got %v", err)
	}
}

func TestUnpackByManyAtOnce(t *testing.T) {
	model, root := testModel(map[string]string{"a": strings.Repeat("x", 1<<20), "b": "y"}), t.TempDir()
	var wait sync.WaitGroup
	for range 8 {
		wait.Go(func() {
			if _, err := unpack(context.Background(), model, root); err != nil {
				t.Error(err)
			}
		})
	}
	wait.Wait()
}

func TestUnpackRefusesNamesThatLeaveTheFolder(t *testing.T) {
	model := fstest.MapFS{sumsName: &fstest.MapFile{Data: []byte("00  ../../evil\n")}}
	if _, err := unpack(context.Background(), model, t.TempDir()); err == nil {
		t.Fatal("a name outside the folder was accepted")
	}
}

func TestUnpackSaysWhyItCannot(t *testing.T) {
	root := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(root, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	_, err := unpack(context.Background(), testModel(map[string]string{"a": "b"}), root)
	if err == nil || !strings.Contains(err.Error(), "folder") {
		t.Fatalf("got %v", err)
	}
}
