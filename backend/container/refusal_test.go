package container

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// small is a published container of a few dozen kilobytes with an MTP layer and an indexer.
func small(t *testing.T) *published {
	m := readConfig(t, "oracles/glm_moe_dsa")
	for key, value := range map[string]any{"hidden_size": 24, "intermediate_size": 20, "moe_intermediate_size": 12, "num_hidden_layers": 2, "n_routed_experts": 4,
		"num_experts_per_tok": 2, "vocab_size": 40, "kv_lora_rank": 9, "q_lora_rank": 8, "qk_nope_head_dim": 6, "qk_rope_head_dim": 4, "v_head_dim": 6,
		"index_n_heads": 2, "index_head_dim": 8, "num_attention_heads": 2, "num_nextn_predict_layers": 1} {
		m[key] = value
	}
	return publish(t, m, func(string) string { return "int8" })
}

// refused opens a directory and wants a refusal that holds every given text.
func refused(t *testing.T, what, dir string, says ...string) {
	t.Helper()
	c, err := Open(dir)
	if err == nil {
		c.Close()
		t.Errorf("%s: opened", what)
		return
	}
	for _, text := range append(says, dir, ";") { // what happened, where, and after a semicolon what to do
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %q is not in: %v", what, text, err)
		}
	}
	t.Logf("%s: %v", what, err)
}

func write(t *testing.T, dir, name, text string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

const lfsPointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 5366238584\n"

func TestRefusedFolders(t *testing.T) {
	refused(t, "nothing there", filepath.Join(t.TempDir(), "none"), "check the path")
	dir := small(t).write(t, "a.safetensors")
	refused(t, "a file", filepath.Join(dir, "config.json"), "give the folder")

	dir = small(t).write(t)
	refused(t, "no weights", dir, "no .safetensors files")
	dir = small(t).write(t, "a.safetensors")
	os.Remove(filepath.Join(dir, "config.json"))
	refused(t, "no config.json", dir, "config.json is missing")
	dir = small(t).write(t, "a.safetensors")
	write(t, dir, "config.json", "{")
	refused(t, "broken config.json", dir, "config.json")
	write(t, dir, "config.json", lfsPointer)
	refused(t, "config.json is an LFS pointer", dir, "config.json", "git lfs pull")
	dir = small(t).write(t, "a.safetensors")
	write(t, dir, "generation_config.json", "[]")
	refused(t, "broken generation_config.json", dir, "generation_config.json")
	dir = small(t).write(t, "a.safetensors")
	write(t, dir, manifestName, "{}")
	refused(t, "an unfinished conversion", dir, "interrupted")

	// Files that are not shards do no harm.
	dir = small(t).write(t, "a.safetensors")
	write(t, dir, "._a.safetensors", "resource fork")
	write(t, dir, ".coli_usage", "1 2 3")
	open(t, dir)
}

func TestRefusedFiles(t *testing.T) {
	dir := small(t).write(t, "a.safetensors", "b.safetensors")
	write(t, dir, "b.safetensors", lfsPointer)
	refused(t, "an LFS pointer", dir, "b.safetensors", "git lfs pull")

	dir = small(t).write(t, "a.safetensors")
	path := filepath.Join(dir, "a.safetensors")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1); err != nil {
		t.Fatal(err)
	}
	refused(t, "a short file", dir, "a.safetensors", "ends at byte", "download it again")

	// The whole length is there, but the disk holds only the header: what a download that reserved room leaves.
	dir = small(t).write(t, "a.safetensors")
	path = filepath.Join(dir, "a.safetensors")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, text[:8+binary.LittleEndian.Uint64(text)], 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, int64(len(text))); err != nil {
		t.Fatal(err)
	}
	refused(t, "a sparse file", dir, "a.safetensors", "unfinished download")

	dir = small(t).write(t, "a.safetensors")
	if err := os.Mkdir(filepath.Join(dir, "b.safetensors"), 0o755); err != nil {
		t.Fatal(err)
	}
	refused(t, "a folder named like a shard", dir, "b.safetensors", "not a regular file")
}

func TestSymbolicLinks(t *testing.T) {
	for _, name := range []string{"a.safetensors", "config.json"} {
		dir := small(t).write(t, "a.safetensors")
		outside := filepath.Join(t.TempDir(), "outside")
		if err := os.Rename(filepath.Join(dir, name), outside); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		refused(t, name+" outside", dir, name, "outside", "put the file itself there")
		os.Remove(outside)
		refused(t, name+" nowhere", dir, name, "link to nothing")
	}
	// Within the folder, and of the folder itself, links are fine.
	dir := small(t).write(t, "a.safetensors")
	os.Mkdir(filepath.Join(dir, "blobs"), 0o755)
	os.Rename(filepath.Join(dir, "a.safetensors"), filepath.Join(dir, "blobs", "x"))
	if err := os.Symlink(filepath.Join("blobs", "x"), filepath.Join(dir, "a.safetensors")); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	open(t, link)
}

func TestIncompleteContainers(t *testing.T) {
	names := []string{"out-00000.safetensors", "out-00001.safetensors", "out-00002.safetensors", "out-00003.safetensors"}
	dir := small(t).write(t, names...)
	os.Remove(filepath.Join(dir, names[1]))
	refused(t, "a gap", dir, "incomplete", "missing from the numbered files: out-00001.safetensors")
	dir = small(t).write(t, names...)
	os.Remove(filepath.Join(dir, names[3]))
	refused(t, "the last file", dir, "incomplete", "after out-00002.safetensors may be missing")
	dir = small(t).write(t, "model-00001-of-00003.safetensors", "model-00002-of-00003.safetensors", "model-00003-of-00003.safetensors")
	os.Remove(filepath.Join(dir, "model-00001-of-00003.safetensors"))
	os.Remove(filepath.Join(dir, "model-00003-of-00003.safetensors"))
	refused(t, "two of three", dir, "model-00001-of-00003.safetensors, model-00003-of-00003.safetensors")

	for _, name := range []string{"model.norm.weight", "lm_head.weight", "model.layers.1.mlp.experts.3.down_proj.weight", "model.layers.0.self_attn.kv_b_proj.weight", "model.layers.1.mlp.gate.e_score_correction_bias"} {
		p := small(t)
		p.remove(name)
		refused(t, "without "+name, p.write(t, "a.safetensors"), "1 tensors are missing ("+name+")")
	}
	p := small(t)
	p.remove("mlp.experts")
	refused(t, "without experts", p.write(t, "a.safetensors"), "24 tensors are missing", "and 20 more")
	p = small(t)
	p.config["n_routed_experts"], p.config["num_hidden_layers"], p.config["mlp_layer_types"], p.config["indexer_types"] = 1<<14, 12, nil, nil
	p.remove("mlp.gate.")
	refused(t, "a hostile config.json", p.write(t, "a.safetensors"), "more than 10")
	p = small(t)
	p.remove("o_proj.weight.qs")
	refused(t, "without scales", p.write(t, "a.safetensors"), "3 tensors are missing (model.layers.0.self_attn.o_proj.weight.qs")
	p = small(t)
	p.remove("model.layers.2.eh_proj")
	refused(t, "half an MTP layer", p.write(t, "a.safetensors"), "model.layers.2.eh_proj.weight")
	p = small(t)
	p.remove("model.layers.0.self_attn.indexer.wk")
	refused(t, "half an indexer", p.write(t, "a.safetensors"), "indexer.wk.weight")

	dir = small(t).write(t, "a.safetensors")
	write(t, dir, "model.safetensors.index.json", `{"weight_map":{"x":"a.safetensors","y":"b.safetensors"}}`)
	refused(t, "a file that the index names", dir, "b.safetensors")
	write(t, dir, "model.safetensors.index.json", `{"weight_map":3}`)
	refused(t, "a broken index", dir, "model.safetensors.index.json")
	write(t, dir, "model.safetensors.index.json", `{"weight_map":{"x":"a.safetensors"}}`)
	open(t, dir)
}

// What may be absent: the MTP layer, and the indexer as a whole; the latter is said.
func TestOptionalParts(t *testing.T) {
	p := small(t)
	c := open(t, p.write(t, "a.safetensors"))
	if c.Config.MTPLayers != 1 || len(c.Config.Sparse) != 3 || len(c.Config.Attention.Index.Full) != 3 || c.Config.Attention.Index.Full[2] || len(c.Notes) != 0 {
		t.Errorf("%+v, notes %v", c.Config, c.Notes)
	}
	p.remove("model.layers.2.")
	c = open(t, p.write(t, "a.safetensors"))
	if c.Config.MTPLayers != 0 || len(c.Config.Sparse) != 2 || len(c.Config.Attention.Index.Full) != 2 {
		t.Errorf("%+v", c.Config)
	}
	p.remove("indexer")
	c = open(t, p.write(t, "a.safetensors"))
	if c.Config.Attention.Index.Heads != 0 || len(c.Notes) != 1 || !strings.Contains(c.Notes[0], "16 tokens") {
		t.Errorf("%+v, notes %v", c.Config.Attention.Index, c.Notes)
	}
}

func TestRefusedTensors(t *testing.T) {
	const name = "model.layers.0.self_attn.o_proj.weight"
	for what, c := range map[string]struct {
		edit func(p *published)
		says []string
	}{
		"an unsupported type":  {func(p *published) { x := p.find(t, name); x.dtype, x.shape = "F64", []int64{36} }, []string{name, "F64"}},
		"32-bit integers":      {func(p *published) { x := p.find(t, name); x.dtype, x.shape = "I32", []int64{72} }, []string{name, "I32"}},
		"a packed norm":        {func(p *published) { x := p.find(t, "model.norm.weight"); x.dtype, x.shape = "U8", []int64{96} }, []string{"model.norm.weight", "F32, BF16 or F16"}},
		"a norm of wrong size": {func(p *published) { p.find(t, "model.norm.weight").shape = []int64{2, 12} }, []string{"[2 12]", "[24]"}},
		"a wrong shape":        {func(p *published) { p.find(t, "model.layers.1.mlp.gate.weight").shape = []int64{24, 4} }, []string{"mlp.gate.weight", "[24 4]", "[4 24]"}},
		"half scales":          {func(p *published) { x := p.find(t, name+".qs"); x.dtype, x.shape = "F16", []int64{48} }, []string{name + ".qs", "F32"}},
		"too much data":        {func(p *published) { x := p.find(t, name); x.data = append(bytes.Clone(x.data), 0) }, []string{name, "289 bytes", "no supported format"}},
		"too many scales":      {func(p *published) { x := p.find(t, name+".qs"); x.data = append(bytes.Clone(x.data), 0, 0, 0, 0) }, []string{name, "100 of scales"}},
		"the lattice format": {func(p *published) {
			p.find(t, name).data = make([]byte, 24*98)
			p.find(t, name+".qs").data = make([]byte, 4)
		}, []string{name, "e8-iq3-lattice"}},
		"a stamp that lies": {func(p *published) { p.stamps[name] = "int4-row" }, []string{name, "stamped int4-row", "do not fit"}},
		"an unknown stamp":  {func(p *published) { p.stamps[name] = "int9" }, []string{name, "int9"}},
		"a rotated stamp":   {func(p *published) { p.stamps[name] = "e8-iq3-lattice" }, []string{name, "not supported"}},
		"a stamped float":   {func(p *published) { p.stamps["model.layers.1.mlp.gate.weight"] = "int8-row" }, []string{"stamped int8-row but holds F32"}},
	} {
		p := small(t)
		c.edit(p)
		refused(t, what, p.write(t, "weights.safetensors"), append(c.says, "weights.safetensors")...)
	}
	p := small(t)
	dir := p.write(t, "a.safetensors")
	writeSafetensors(t, filepath.Join(dir, "b.safetensors"), nil, []tensorData{*p.find(t, "model.norm.weight")})
	refused(t, "a tensor in two files", dir, "model.norm.weight", "a.safetensors", "b.safetensors")

	// Tensors that no part of the model uses are listed, whatever their type.
	p = small(t)
	p.tensors = append(p.tensors, tensorData{"model.layers.0.self_attn.rotary_emb.inv_freq", "F64", nil, make([]byte, 16)})
	if c := open(t, p.write(t, "a.safetensors")); len(c.Ignored) != 1 {
		t.Errorf("unused: %v", c.Ignored)
	}
}

func TestConflictingStamps(t *testing.T) {
	p := small(t)
	dir := p.write(t, "a.safetensors", "b.safetensors")
	for i, format := range []string{"int8-row", "fp8-e4m3-b128"} {
		share := p.tensors[i*len(p.tensors)/2 : (i+1)*len(p.tensors)/2]
		writeSafetensors(t, filepath.Join(dir, string("ab"[i])+".safetensors"), map[string]string{stampKey: `{"lm_head.weight":"` + format + `"}`}, share)
	}
	refused(t, "two stamps", dir, "lm_head.weight", "int8-row", "fp8-e4m3-b128")
	for what, text := range map[string]string{"no JSON": "x", "a number": `{"a":1}`, "twice": `{"a":"int8-row","a":"int8-row"}`} {
		dir := p.write(t)
		writeSafetensors(t, filepath.Join(dir, "a.safetensors"), map[string]string{stampKey: text}, p.tensors)
		refused(t, what, dir, "a.safetensors")
	}
}

// Our own files, changed in one place each.
func TestRefusedRecords(t *testing.T) {
	good, _ := mustConvert(t, small(t).write(t, "a.safetensors"), Options{})
	shards, _ := filepath.Glob(filepath.Join(good, "*.safetensors"))
	file := filepath.Base(shards[len(shards)-1])
	text, err := os.ReadFile(filepath.Join(good, file))
	if err != nil {
		t.Fatal(err)
	}
	length := 8 + binary.LittleEndian.Uint64(text)
	header := string(text[8:length])
	// The descriptions lie in a JSON string in JSON: their quotes are escaped.
	for what, c := range map[string]struct{ from, to, says string }{
		"a newer version":        {`"colibri.version":"1"`, `"colibri.version":"2"`, "version 2"},
		"no description":         {`"colibri.records"`, `"colibri.recordz"`, "nothing describes"},
		"another description":    {`\"model.layers.1.mlp.experts\":`, `\"model.layers.7.mlp.experts\":`, "nothing describes"},
		"a wrong format":         {`\"format\":\"int8-row\",\"shape\":[12,24]`, `\"format\":\"int4-row\",\"shape\":[12,24]`, "do not fit"},
		"an unknown format":      {`\"format\":\"int8-row\"`, `\"format\":\"int8-col\"`, "int8-col"},
		"a wrong shape":          {`\"shape\":[12,24]`, `\"shape\":[24,12]`, "do not fit"},
		"a part outside":         {`\"data\":[0,288]`, `\"data\":[99999984,288]`, "outside"},
		"a negative place":       {`\"data\":[0,288]`, `\"data\":[-16,288]`, "whole number"},
		"parts that overlap":     {`\"scales\":[320,48]`, `\"scales\":[32,48]`, "overlap"},
		"a part off alignment":   {`\"scales\":[320,48]`, `\"scales\":[321,48]`, "multiple of 16"},
		"a record of other size": {`\"bytes\":[16384]`, `\"bytes\":[32768]`, "instead of 32768"},
		"a record of no pages":   {`\"bytes\":[16384]`, `\"bytes\":[16383]`, "multiple"},
		"an unknown part":        {`\"gate_proj\"`, `\"gate_prog\"`, "gate_prog"},
		"a broken checksum":      {`"colibri.crc32c":"{\"model.layers.1.mlp.experts.0\":\"`, `"colibri.crc32c":"{\"model.layers.1.mlp.experts.0\":\"x`, "hexadecimal"},
	} {
		edited := strings.ReplaceAll(header, c.from, c.to)
		if edited == header {
			t.Fatalf("%s: %s is not in the header %s", what, c.from, strings.TrimRight(header, " "))
		}
		dir := checkpointOnly(t, good)
		os.Remove(filepath.Join(dir, file))
		padded := strings.TrimRight(edited, " ")
		padded += strings.Repeat(" ", len(header)-len(padded))
		write(t, dir, file, string(text[:8])+padded+string(text[length:]))
		refused(t, what, dir, file, c.says)
	}
	// A header that is not padded moves the records off their alignment.
	dir := checkpointOnly(t, good)
	os.Remove(filepath.Join(dir, file))
	bare := strings.TrimRight(header, " ")
	write(t, dir, file, string(binary.LittleEndian.AppendUint64(nil, uint64(len(bare))))+bare+string(text[length:]))
	refused(t, "records off alignment", dir, file, "not a multiple of 16384")
	// Another model's config.json.
	dir = checkpointOnly(t, good)
	config := map[string]any{}
	json.Unmarshal([]byte(contentsOf(t, good)["config.json"]), &config)
	config["moe_intermediate_size"] = 14
	changed, _ := json.Marshal(config)
	os.Remove(filepath.Join(dir, "config.json"))
	write(t, dir, "config.json", string(changed))
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "config.json") {
		t.Errorf("another config.json: %v", err)
	}
}

func TestMissingNumbers(t *testing.T) {
	for _, c := range []struct{ names, want string }{
		{"out-00000 out-00002 out-00005", "out-00001 out-00003 out-00004"},
		{"out-00000 out-00001 out-mtp-00001", "out-mtp-00000"},
		{"model-00002-of-00003", "model-00001-of-00003 model-00003-of-00003"},
		{"model-00000-of-00002", "model-00001-of-00002"},
		{"a b", ""},
		{"out-999999 out-000000", ""}, // not a sequence
	} {
		var names, want []string
		for _, n := range strings.Fields(c.names) {
			names = append(names, n+".safetensors")
		}
		for _, n := range strings.Fields(c.want) {
			want = append(want, n+".safetensors")
		}
		if got := missingNumbers(names); strings.Join(got, " ") != strings.Join(want, " ") {
			t.Errorf("%s: %v, want %v", c.names, got, want)
		}
	}
}
