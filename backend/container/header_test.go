package container

import (
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const testdata = "../../testdata"

// The vectors of testdata/safetensors, written from the format's text: every valid file is read, every malformed one refused
// with a sentence that names the file.
func TestSafetensorsVectors(t *testing.T) {
	dir := filepath.Join(testdata, "safetensors")
	text, err := os.ReadFile(filepath.Join(dir, "MANIFEST.json"))
	if err != nil {
		t.Fatal(err)
	}
	var vectors []struct{ File, Expect string }
	if err := json.Unmarshal(text, &vectors); err != nil || len(vectors) != 36 {
		t.Fatalf("%d vectors, %v", len(vectors), err)
	}
	for _, v := range vectors {
		f, err := openShard(dir, v.File)
		if err == nil {
			f.handle.Close()
		}
		switch valid := strings.HasPrefix(v.Expect, "ok"); {
		case valid && err != nil:
			t.Errorf("%s: %v", v.File, err)
		case !valid && err == nil:
			t.Errorf("%s was accepted", v.File)
		case !valid && !strings.Contains(err.Error(), v.File):
			t.Errorf("the refusal of %s does not name it: %v", v.File, err)
		case !valid:
			t.Log(err)
		}
	}
}

func TestHeaderContent(t *testing.T) {
	h, err := parseHeader([]byte(`{"b":{"dtype":"F32","shape":[2,3],"data_offsets":[2,26]},`+
		`"__metadata__":{"a\n\"\u00e9\ud83d\ude00":"\/"},"a":{"shape":[ 2 ],"data_offsets":[0, 2],"dtype":"U8"}}  `), 26)
	if err != nil {
		t.Fatal(err)
	}
	if len(h.tensors) != 2 || h.tensors[0].name != "a" || h.tensors[1].name != "b" || h.tensors[1].end != 26 || h.tensors[1].shape[1] != 3 {
		t.Errorf("tensors %+v", h.tensors)
	}
	if h.metadata["a\n\"é😀"] != "/" {
		t.Errorf("metadata %q", h.metadata)
	}
}

func TestStamps(t *testing.T) {
	good, err := parseStamps(`{"a": "int4-grouped", "b":"int4-g64","c":"fp8-e4m3-b128"}`)
	if err != nil || good["a"] != (Encoding{Int4Group, 0}) || good["b"] != (Encoding{Int4Group, 64}) || good["c"] != (Encoding{Format: FP8Block128}) {
		t.Errorf("%v, %v", good, err)
	}
	for _, bad := range []string{``, `[]`, `{"a":1}`, `{"a":"int5"}`, `{"a":"int8-row","a":"int8-row"}`, `{"a":"int8-row"} x`, `{"a":"mxfp4"}`, "{\"\xff\":\"int8-row\"}"} {
		if _, err := parseStamps(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// What the parser accepts, encoding/json must accept too, with the same names; and the entries must tile the data.
func FuzzHeader(f *testing.F) {
	files, _ := filepath.Glob(filepath.Join(testdata, "safetensors", "*.safetensors"))
	for _, name := range files {
		if b, err := os.ReadFile(name); err == nil && len(b) > 8 && len(b) < 4096 {
			n := min(binary.LittleEndian.Uint64(b), uint64(len(b)-8))
			f.Add(b[8:8+n], int64(uint64(len(b)-8)-n))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, dataBytes int64) {
		h, err := parseHeader(text, dataBytes)
		if err != nil {
			return
		}
		var oracle map[string]json.RawMessage
		if err := json.Unmarshal(text, &oracle); err != nil {
			t.Fatalf("accepted %q, which is not JSON: %v", text, err)
		}
		var at int64
		for _, e := range h.tensors {
			if _, ok := oracle[e.name]; !ok || e.begin != at || e.end < e.begin {
				t.Fatalf("tensor %+v of %q", e, text)
			}
			at = e.end
		}
		if at != dataBytes {
			t.Fatalf("%d of %d bytes covered by %q", at, dataBytes, text)
		}
	})
}

func FuzzStamps(f *testing.F) {
	f.Add(`{"a":"int8-row"}`)
	f.Add(`{"a\u0041":"int4-g64" , "b":"fp8-e4m3-b128"}`)
	f.Fuzz(func(t *testing.T, text string) {
		stamps, err := parseStamps(text)
		if err != nil {
			return
		}
		var oracle map[string]string
		if err := json.Unmarshal([]byte(text), &oracle); err != nil || len(oracle) != len(stamps) {
			t.Fatalf("%q: %d stamps, encoding/json has %d (%v)", text, len(stamps), len(oracle), err)
		}
	})
}
