package container_test

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"colibri/backend/container"
)

// This file reads containers the way docs/containers.md says, and in no other way: it is written from that page and uses nothing of this package
// but what makes the files and what is compared. Where it and the program differ, the page is wrong or the program is.

const data = "../../testdata/"

// tensor is a tensor of a shard, as its header says.
type tensor struct {
	DType   string  `json:"dtype"`
	Shape   []int64 `json:"shape"`
	Offsets []int64 `json:"data_offsets"`
	bytes   []byte
}

type documentedShard struct {
	dataStart int64
	tensors   map[string]tensor
	inOrder   []string
	metadata  map[string]string
}

func readShard(t *testing.T, path string) documentedShard {
	t.Helper()
	file, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := int64(binary.LittleEndian.Uint64(file))
	var header map[string]json.RawMessage
	if err := json.Unmarshal(file[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	s := documentedShard{dataStart: 8 + n, tensors: map[string]tensor{}}
	for name, text := range header {
		if name == "__metadata__" {
			if err := json.Unmarshal(text, &s.metadata); err != nil {
				t.Fatal(err)
			}
			continue
		}
		var x tensor
		if err := json.Unmarshal(text, &x); err != nil {
			t.Fatal(err)
		}
		x.bytes = file[s.dataStart+x.Offsets[0] : s.dataStart+x.Offsets[1]]
		s.tensors[name] = x
		s.inOrder = append(s.inOrder, name)
	}
	slices.SortFunc(s.inOrder, func(a, b string) int { return int(s.tensors[a].Offsets[0] - s.tensors[b].Offsets[0]) })
	return s
}

func readFolder(t *testing.T, dir string) map[string]documentedShard {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%s: %v, %v", dir, paths, err)
	}
	shards := map[string]documentedShard{}
	for _, path := range paths {
		if filepath.Base(path) != "reference.safetensors" {
			shards[filepath.Base(path)] = readShard(t, path)
		}
	}
	return shards
}

func ceil(a, b int) int { return (a + b - 1) / b }

// unpack gives the weights of a matrix, and the scale of each.
func unpack(t *testing.T, format string, rows, columns int, bytes []byte, scales []float32) (weights, steps []float32) {
	t.Helper()
	var group int
	_, _ = fmt.Sscanf(format, "int4-g%d", &group)
	rowBytes := map[string]int{"f32": 4 * columns, "bf16": 2 * columns, "f16": 2 * columns, "int8-row": columns, "int4-row": ceil(columns, 2),
		"int2-row": ceil(columns, 4), "int3-g64": 24 * ceil(columns, 64), "fp8-e4m3-b128": columns}[format]
	if group > 0 {
		rowBytes = ceil(columns, 2)
	}
	if rowBytes == 0 || len(bytes) != rows*rowBytes {
		t.Fatalf("%s of [%d, %d] in %d bytes", format, rows, columns, len(bytes))
	}
	for r := range rows {
		row := bytes[r*rowBytes : (r+1)*rowBytes]
		for i := range columns {
			var q, s float32
			switch {
			case format == "f32":
				q = math.Float32frombits(binary.LittleEndian.Uint32(row[4*i:]))
			case format == "bf16":
				q = math.Float32frombits(uint32(binary.LittleEndian.Uint16(row[2*i:])) << 16)
			case format == "f16":
				q = half(binary.LittleEndian.Uint16(row[2*i:]))
			case format == "int8-row":
				q, s = float32(int8(row[i])), scales[r]
			case format == "int4-row" || group > 0:
				nibble := row[i/2] % 16
				if i%2 == 1 {
					nibble = row[i/2] / 16
				}
				q = float32(nibble) - 8
				if group > 0 {
					s = scales[r*ceil(columns, group)+i/group]
				} else {
					s = scales[r]
				}
			case format == "int2-row":
				q, s = float32(row[i/4]>>(2*(i%4))%4)-2, scales[r]
			case format == "int3-g64":
				k, packed := i%64, row[i/64*24:]
				low, high := packed[k/4]>>(2*(k%4))%4, packed[16+k/8]>>(k%8)%2
				q, s = float32(low+4*high)-4, scales[r*ceil(columns, 64)+i/64]
			case format == "fp8-e4m3-b128":
				q, s = float8(row[i]), scales[r/128*ceil(columns, 128)+i/128]
			}
			if len(scales) == 0 {
				s = 1
			}
			weights, steps = append(weights, s*q), append(steps, s)
		}
	}
	return weights, steps
}

func half(h uint16) float32 {
	exponent, mantissa := int(h>>10)%32, float64(h%1024)
	v := math.Ldexp(mantissa, -24)
	if exponent > 0 {
		v = math.Ldexp(1+mantissa/1024, exponent-15)
	}
	if h>>15 == 1 {
		v = -v
	}
	return float32(v)
}

func float8(b byte) float32 {
	exponent, mantissa := int(b>>3)%16, float64(b%8)
	v := math.Ldexp(mantissa/8, -6)
	if exponent > 0 {
		v = math.Ldexp(1+mantissa/8, exponent-7)
	}
	if b >= 128 {
		v = -v
	}
	return float32(v)
}

func floats(b []byte) []float32 {
	out := make([]float32, len(b)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// decoded is a weight and the step between neighbouring numbers at each place, 0 where nothing was rounded to steps.
type decoded struct {
	format         string
	weights, steps []float32
}

// decode reads all weights of a folder. shapeOf gives rows and columns of a packed weight.
func decode(t *testing.T, shards map[string]documentedShard, shapeOf func(name string) (rows, columns int)) map[string]decoded {
	t.Helper()
	stamps, all, scales := map[string]string{}, map[string]tensor{}, map[string][]float32{}
	out := map[string]decoded{}
	for _, s := range shards {
		if text, ok := s.metadata["colibri.fmt"]; ok {
			if err := json.Unmarshal([]byte(text), &stamps); err != nil {
				t.Fatal(err)
			}
		}
		for name, x := range s.tensors {
			all[name] = x
			for _, suffix := range []string{".qs", "_scale_inv"} {
				if of, ok := strings.CutSuffix(name, suffix); ok {
					scales[of] = floats(x.bytes)
				}
			}
		}
		var records map[string]map[string]json.RawMessage
		if text, ok := s.metadata["colibri.records"]; ok {
			if err := json.Unmarshal([]byte(text), &records); err != nil {
				t.Fatal(err)
			}
		}
		for name, x := range s.tensors {
			layer, _, isRecord := cutLast(name, '.')
			if record, ok := records[layer]; ok && isRecord {
				decodeRecord(t, name, x.bytes, record, out)
				delete(all, name)
			}
		}
	}
	for name, x := range all {
		if strings.HasSuffix(name, ".qs") || strings.HasSuffix(name, "_scale_inv") {
			continue
		}
		rows, columns := shapeOf(name)
		format := map[string]string{"F32": "f32", "BF16": "bf16", "F16": "f16", "F8_E4M3": "fp8-e4m3-b128", "U8": stamps[name]}[x.DType]
		if format == "" || format == "int4-grouped" {
			possible := bySize(rows, columns, len(x.bytes), len(scales[name]))
			if format == "" && len(possible) != 1 {
				continue // the third rule, evidence, has tests of its own
			}
			format = possible[0]
			if stamps[name] == "int4-grouped" {
				format = possible[slices.IndexFunc(possible, func(f string) bool { return strings.HasPrefix(f, "int4-") })]
			}
		}
		w, steps := unpack(t, format, rows, columns, x.bytes, scales[name])
		out[name] = decoded{format, w, steps}
	}
	return out
}

// bySize lists the formats that a weight of so many bytes and scales can have, by the page's table; of groups only the finest.
func bySize(rows, columns, bytes, scales int) (possible []string) {
	add := func(format string, rowBytes, scalesThere int) {
		if bytes == rows*rowBytes && scales == scalesThere {
			possible = append(possible, format)
		}
	}
	add("int8-row", columns, rows)
	add("fp8-e4m3-b128", columns, ceil(rows, 128)*ceil(columns, 128))
	add("int2-row", ceil(columns, 4), rows)
	add("int3-g64", 24*ceil(columns, 64), rows*ceil(columns, 64))
	for _, group := range []int{16, 32, 48, 64, 96, 128, 192, 256} {
		before := len(possible)
		if group < columns {
			add(fmt.Sprintf("int4-g%d", group), ceil(columns, 2), rows*ceil(columns, group))
		}
		if len(possible) > before {
			return possible
		}
	}
	add("int4-row", ceil(columns, 2), rows)
	return possible
}

func cutLast(s string, c byte) (before, after string, found bool) {
	if i := strings.LastIndexByte(s, c); i >= 0 {
		return s[:i], s[i+1:], true
	}
	return s, "", false
}

func decodeRecord(t *testing.T, name string, record []byte, description map[string]json.RawMessage, out map[string]decoded) {
	t.Helper()
	var size []int
	if err := json.Unmarshal(description["bytes"], &size); err != nil || size[0] != len(record) || size[0]%16384 != 0 {
		t.Fatalf("%s: %v bytes described, %d there, %v", name, size, len(record), err)
	}
	at := 0
	for _, part := range []string{"gate_proj", "up_proj", "down_proj"} {
		var p struct {
			Format              string
			Shape, Data, Scales []int
		}
		if err := json.Unmarshal(description[part], &p); err != nil {
			t.Fatal(err)
		}
		for _, run := range [][]int{p.Data, p.Scales} {
			if run[0] != at {
				t.Errorf("%s: %s has a run at %d instead of %d", name, part, run[0], at)
			}
			at = ceil(run[0]+run[1], 64) * 64
		}
		w, steps := unpack(t, p.Format, p.Shape[0], p.Shape[1], record[p.Data[0]:p.Data[0]+p.Data[1]], floats(record[p.Scales[0]:p.Scales[0]+p.Scales[1]]))
		out[name+"."+part+".weight"] = decoded{p.Format, w, steps}
	}
	if slices.ContainsFunc(record[min(at, len(record)):], func(b byte) bool { return b != 0 }) || len(record) != ceil(at, 16384)*16384 {
		t.Errorf("%s: %d bytes of runs in a record of %d, and zeros after them", name, at, len(record))
	}
}

// compareWithProgram holds the page's reading against the program's, number by number.
func compareWithProgram(t *testing.T, c *container.Container, read map[string]decoded) {
	t.Helper()
	for name, d := range read {
		if _, known := c.Weight(name); !known {
			continue // the model does not use it
		}
		b, err := c.Block(name)
		if err != nil {
			t.Fatal(err)
		}
		if got := b.Encoding.String(); got != d.format && !(got == "int4-row" && strings.HasPrefix(d.format, "int4-g")) {
			t.Errorf("%s is %s by the page, %s by the program", name, d.format, got)
		}
		if program := container.Dequantise(&b); !slices.Equal(program, d.weights) {
			t.Errorf("%s (%s) has other weights by the page", name, d.format)
		}
	}
}

func shapesOf(t *testing.T, c *container.Container) func(string) (int, int) {
	return func(name string) (int, int) {
		w, ok := c.Weight(name)
		if !ok {
			t.Fatalf("%s is no weight of the model", name)
		}
		return w.Rows, w.Columns
	}
}

func open(t *testing.T, dir string) *container.Container {
	t.Helper()
	c, err := container.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestOurContainersAreAsDocumented(t *testing.T) {
	checkpoint := data + "oracles/glm_moe_dsa"
	source := decode(t, readFolder(t, checkpoint), shapesOf(t, open(t, checkpoint)))
	for _, format := range documentedFormats(t) {
		t.Run(format, func(t *testing.T) {
			e, err := container.ParseEncoding(strings.Replace(format, "gN", "g32", 1))
			if err != nil {
				t.Fatal(err)
			}
			dir := filepath.Join(t.TempDir(), "Model.colibri")
			options := container.Options{Experts: e, SharedExperts: e, Attention: e, DenseMLP: e, Embeddings: e, MTP: e, ShardBytes: 300_000}
			if _, err := container.Convert(t.Context(), checkpoint, dir, options, nil); err != nil {
				t.Fatal(err)
			}
			shards := readFolder(t, dir)
			for name, s := range shards {
				checkShard(t, name, len(shards), s)
			}
			c := open(t, dir)
			read := decode(t, shards, shapesOf(t, c))
			compareWithProgram(t, c, read)
			if len(read) < 100 {
				t.Fatalf("only %d weights", len(read))
			}
			for name, d := range read {
				if want, ok := source[name]; ok {
					checkRounding(t, name, d, want.weights)
				}
			}
		})
	}
}

// checkRounding: each weight is the nearest that its format has, as the page says of quantisation.
func checkRounding(t *testing.T, name string, d decoded, want []float32) {
	t.Helper()
	for i, w := range want {
		got := float64(d.weights[i])
		allowed := 0.5 * float64(d.steps[i])
		switch d.format {
		case "f32":
			allowed = 0
		case "bf16":
			allowed = math.Abs(float64(w)) / 256
		case "f16":
			allowed = math.Abs(float64(w))/2048 + math.Ldexp(1, -25)
		case "fp8-e4m3-b128": // half of the step of 3 bits of mantissa, or of the smallest numbers
			allowed = max(math.Abs(float64(w))/16, math.Ldexp(float64(d.steps[i]), -10))
		}
		if math.Abs(got-float64(w)) > allowed*(1+1e-5) {
			t.Fatalf("%s (%s): weight %d is %g, the checkpoint has %g, %g is allowed", name, d.format, i, got, w, allowed)
		}
	}
}

// checkShard holds a shard of ours against the page: name, alignment, order, checksums, version.
func checkShard(t *testing.T, name string, all int, s documentedShard) {
	t.Helper()
	if m := regexp.MustCompile(`^model-(\d{5})-of-(\d{5})\.safetensors$`).FindStringSubmatch(name); m == nil || m[2] != fmt.Sprintf("%05d", all) {
		t.Errorf("a shard is named %s, there are %d", name, all)
	}
	if s.dataStart%16384 != 0 || s.metadata["colibri.version"] != "1" || s.metadata["format"] != "pt" {
		t.Errorf("%s: data at %d, version %q, format %q", name, s.dataStart, s.metadata["colibri.version"], s.metadata["format"])
	}
	var sums map[string]string
	if err := json.Unmarshal([]byte(s.metadata["colibri.crc32c"]), &sums); err != nil {
		t.Fatal(err)
	}
	width := map[string]int{"F32": 4, "BF16": 2, "F16": 2, "U8": 1}
	last := 4
	_, expertShard := s.metadata["colibri.records"]
	for _, tensorName := range s.inOrder {
		x := s.tensors[tensorName]
		if got := fmt.Sprintf("%08x", crc32.Checksum(x.bytes, crc32.MakeTable(crc32.Castagnoli))); got != sums[tensorName] {
			t.Errorf("%s: %s has checksum %s, %q is written", name, tensorName, got, sums[tensorName])
		}
		if w := width[x.DType]; w == 0 || w > last {
			t.Errorf("%s: %s is %s after tensors of %d bytes a number", name, tensorName, x.DType, last)
		}
		last = width[x.DType]
		if isRecord := regexp.MustCompile(`\.mlp\.experts\.\d+$`).MatchString(tensorName); isRecord != expertShard || isRecord && x.Offsets[0]%16384 != 0 {
			t.Errorf("%s: %s at %d does not belong here", name, tensorName, x.Offsets[0])
		}
	}
}

func TestPublishedContainersAreAsDocumented(t *testing.T) {
	dirs, err := filepath.Glob(data + "containers/*")
	if err != nil || len(dirs) < 7 {
		t.Fatalf("%v, %v", dirs, err)
	}
	for _, dir := range dirs {
		t.Run(filepath.Base(dir), func(t *testing.T) {
			c := open(t, dir)
			shards := readFolder(t, dir)
			for _, s := range shards {
				for _, name := range c.Ignored {
					delete(s.tensors, name)
				}
			}
			read := decode(t, shards, shapesOf(t, c))
			compareWithProgram(t, c, read)
			if total := len(c.Resident()); len(read) < total {
				t.Errorf("sizes and stamps told the formats of only %d weights; %d are resident", len(read), total)
			}
		})
	}
}

func page(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../docs/containers.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// documentedFormats are the names in the page's table of formats.
func documentedFormats(t *testing.T) []string {
	t.Helper()
	_, table, _ := strings.Cut(page(t), "| name | bytes of a row")
	table, _, _ = strings.Cut(table, "\n\n")
	var names []string
	for line := range strings.Lines(table) {
		cell, _, _ := strings.Cut(strings.TrimPrefix(line, "|"), "|")
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cell, -1) {
			names = append(names, m[1])
		}
	}
	if len(names) != 9 {
		t.Fatalf("the page's table has the formats %v", names)
	}
	return names
}

func TestTheExamplesOfThePage(t *testing.T) {
	_, block, found := strings.Cut(page(t), "```example\n")
	block, _, _ = strings.Cut(block, "```")
	if !found {
		t.Fatal("the page has no examples")
	}
	line := regexp.MustCompile(`^(\S+)\s+columns (\d+)\s+bytes ([0-9a-f ]+?)\s+scales ([-0-9. ]*?)\s+weights ([-0-9. ]+)$`)
	examples := 0
	for text := range strings.Lines(block) {
		m := line.FindStringSubmatch(strings.TrimSpace(text))
		if m == nil {
			t.Errorf("%q is no example", text)
			continue
		}
		examples++
		columns, _ := strconv.Atoi(m[2])
		packed, err := hex.DecodeString(strings.ReplaceAll(m[3], " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		numbers := func(text string) (out []float32) {
			for _, word := range strings.Fields(text) {
				v, err := strconv.ParseFloat(word, 32)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, float32(v))
			}
			return out
		}
		scales, want := numbers(m[4]), numbers(m[5])
		if got, _ := unpack(t, m[1], 1, columns, packed, scales); !slices.Equal(got, want) {
			t.Errorf("%s: the page's rule gives %v, the page says %v", m[1], got, want)
		}
		e, err := container.ParseEncoding(m[1])
		if err != nil {
			t.Fatal(err)
		}
		b := container.Block{Encoding: e, Rows: 1, Columns: columns, Data: packed, Scales: scales}
		if got := container.Dequantise(&b); !slices.Equal(got, want) {
			t.Errorf("%s: the program gives %v, the page says %v", m[1], got, want)
		}
	}
	if examples != 8 {
		t.Errorf("%d examples", examples)
	}
}
