package container

import (
	"fmt"
	"slices"
	"strings"
)

// publishedGroups are the group sizes that published int4 containers use, finest first: theirs say only "int4-grouped".
var publishedGroups = []int{16, 32, 48, 64, 96, 128, 192, 256}

// shape is rows and columns of a matrix.
type shape struct{ rows, columns int }

// quantised is a packed tensor and its scales, which hold one matrix, or an expert's three (merged). Until its encoding is
// settled, readings lists those that its byte counts allow.
type quantised struct {
	name         string // of the tensor
	weights      []string
	shapes       []shape
	class        Class
	layer        int
	data, scales Span
	readings     []Encoding
	stamped      bool
}

// readingsOf lists the encodings whose byte counts fit. Groups at least as wide as a row mean the same as one scale a row, which is
// how they are listed.
func readingsOf(dataBytes, scaleBytes int64, shapes []shape) []Encoding {
	possible := []Encoding{{Format: Int8Row}, {Format: FP8Block128}, {Format: Int4Row}, {Format: Int3Group64}, {Format: Int2Row}}
	widest := 0
	for _, s := range shapes {
		widest = max(widest, s.columns)
	}
	for _, group := range publishedGroups {
		if group < widest {
			possible = append(possible, Encoding{Int4Group, group})
		}
	}
	return slices.DeleteFunc(possible, func(e Encoding) bool { return !fits(e, dataBytes, scaleBytes, shapes) })
}

func fits(e Encoding, dataBytes, scaleBytes int64, shapes []shape) bool {
	for _, s := range shapes {
		dataBytes -= e.DataBytes(s.rows, s.columns)
		scaleBytes -= 4 * e.ScaleCount(s.rows, s.columns)
	}
	return dataBytes == 0 && scaleBytes == 0
}

// stamp narrows the readings to what the file says of itself.
func (q *quantised) stamp(e Encoding) error {
	q.stamped = true
	if e == (Encoding{Format: Int4Group}) {
		q.readings = slices.DeleteFunc(q.readings, func(r Encoding) bool { return r.Format != Int4Group && r.Format != Int4Row })
	} else if fits(e, q.data.Bytes, q.scales.Bytes, q.shapes) {
		// A stamp may name a group that published containers never use, so it replaces the list.
		q.readings = []Encoding{e}
	} else {
		q.readings = nil
	}
	if len(q.readings) == 0 {
		return fmt.Errorf("tensor %q is stamped %s, but its %d bytes of data and %d of scales do not fit that for %v; use the config.json and files of one model, or convert it again",
			q.name, e, q.data.Bytes, q.scales.Bytes, q.shapesText())
	}
	return nil
}

// role is a tensor's name without its numbers: what it is in every layer.
func role(name string) string {
	bare := make([]byte, 0, len(name))
	for _, c := range []byte(name) {
		if c < '0' || c > '9' {
			bare = append(bare, c)
		}
	}
	return string(bare)
}

// evidence collects what the container's settled tensors are stored as, by role and by class.
type evidence struct {
	settled map[kind]map[Encoding]bool
	sampled map[kind]int // tensors of a role whose bytes were heard
}

// kind is a class of tensors, or (with a role) the same tensor in every layer.
type kind struct {
	role  string
	class Class
}

// samplesPerRole bounds the reading of samples: when so many tensors of one role have been heard, the rest follow them.
// Without a bound, a container of 60,000 expert weights of an ambiguous width would be read almost whole.
const samplesPerRole = 128

func newEvidence() evidence {
	return evidence{settled: map[kind]map[Encoding]bool{}, sampled: map[kind]int{}}
}

func (ev evidence) add(q *quantised) {
	for _, key := range q.kinds() {
		if ev.settled[key] == nil {
			ev.settled[key] = map[Encoding]bool{}
		}
		ev.settled[key][q.readings[0]] = true
	}
}

// kinds: the same tensor in other layers says more than others of its class, and is asked first.
func (q *quantised) kinds() [2]kind {
	return [2]kind{{role(q.name), q.class}, {"", q.class}}
}

// relatives is the reading that the settled relatives of q share, if exactly one of q's readings occurs among them.
func (ev evidence) relatives(q *quantised) (Encoding, bool) {
	for _, key := range q.kinds() {
		var found []Encoding
		for _, r := range q.readings {
			if ev.settled[key][r] {
				found = append(found, r)
			}
		}
		if len(found) == 1 {
			return found[0], true
		}
		if len(found) > 1 {
			return Encoding{}, false
		}
	}
	return Encoding{}, false
}

// settle decides between the readings of q. Two witnesses are heard: its relatives in the container, and a sample of its own bytes.
// One suffices; two that disagree, or none, mean a refusal that names the readings. Group sizes that leave both
// witnesses silent follow the published rule: the finest that fits.
func (q *quantised) settle(ev evidence, sample func(shape) (data []byte, scales []float32, rows int, err error)) error {
	byRelatives, related := ev.relatives(q)
	byBytes, telling := byRelatives, false
	if tried := ev.sampled[q.kinds()[0]]; !related || tried < samplesPerRole {
		data, scales, rows, err := sample(q.shapes[0])
		if err != nil {
			return err
		}
		byBytes, telling = readBytes(q.readings, data, scales, shape{rows, q.shapes[0].columns})
		ev.sampled[q.kinds()[0]]++
	}
	var decided Encoding
	switch {
	case related && telling && byRelatives != byBytes:
		return q.undecided(fmt.Sprintf("its bytes look like %s, but its relatives in the container are %s", byBytes, byRelatives))
	case related:
		decided = byRelatives
	case telling:
		decided = byBytes
	case !slices.ContainsFunc(q.readings, func(r Encoding) bool { return r.Format != Int4Group }):
		decided = q.readings[0]
	default:
		return q.undecided("nothing in the container tells which")
	}
	q.readings = []Encoding{decided}
	ev.add(q)
	return nil
}

func (q *quantised) undecided(why string) error {
	names := make([]string, len(q.readings))
	for i, r := range q.readings {
		names[i] = r.String()
	}
	return fmt.Errorf("tensor %q (%v) can be read as %s, and %s; use a container whose colibri.fmt stamp names the format, or convert the original checkpoint",
		q.name, q.shapesText(), strings.Join(names, " or as "), why)
}

func (q *quantised) shapesText() string {
	texts := make([]string, len(q.shapes))
	for i, s := range q.shapes {
		texts[i] = s.String()
	}
	return strings.Join(texts, " with ")
}

func (s shape) String() string { return fmt.Sprintf("[%d, %d]", s.rows, s.columns) }

// Scales are chosen by the largest weight of a group, so in the right reading practically every group holds the largest
// value of its format, and practically no weight the lowest code (−8 of int4), which has no positive counterpart. Cutting the
// same bytes into wrong groups misses the largest value in a quarter of them or more; reading them as another
// format hits the lowest code as often as any other.
const (
	reachedShare = 0.95
	lowestShare  = 0.01
)

// readBytes hears the second witness. fp8 data never holds the NaN codes 0x7F and 0xFF, int8 rows (127 and −1) practically always
// do; integer formats are credible as described above.
func readBytes(readings []Encoding, data []byte, scales []float32, s shape) (Encoding, bool) {
	var credible []Encoding
	for _, r := range readings {
		if r.Format == FP8Block128 && !holdsNaN(data) || r.Format != FP8Block128 && credibleIntegers(r, data, scales, s) {
			credible = append(credible, r)
		}
	}
	if len(credible) == 1 {
		return credible[0], true
	}
	// Bytes that hold NaN codes are not fp8, even if their rows were not scaled to the largest value.
	if i := slices.IndexFunc(readings, func(r Encoding) bool { return r.Format == FP8Block128 }); i >= 0 && len(readings) == 2 && len(credible) == 0 {
		return readings[1-i], true
	}
	return Encoding{}, false
}

func holdsNaN(data []byte) bool {
	return slices.ContainsFunc(data, func(b byte) bool { return b&0x7F == 0x7F })
}

// credibleIntegers tells whether packed integers look like the work of a symmetric quantiser. Groups of zeros are left out.
func credibleIntegers(e Encoding, data []byte, scales []float32, s shape) bool {
	largest := e.Format.largest()
	perRow, rowBytes, width := int(e.ScaleCount(1, s.columns)), int(e.DataBytes(1, s.columns)), e.groupWidth(s.columns)
	ones := make([]float32, perRow)
	for i := range ones {
		ones[i] = 1
	}
	row := make([]float32, s.columns)
	groups, reached, weights, lowest := 0, 0, 0, 0
	for r := range s.rows {
		dequantiseRow(e, data[r*rowBytes:(r+1)*rowBytes], ones, row)
		for g := range perRow {
			if scales[r*perRow+g] <= 2*smallestScale {
				continue
			}
			group := row[g*width : min((g+1)*width, s.columns)]
			groups++
			weights += len(group)
			if absoluteMax(group) >= largest {
				reached++
			}
			for _, v := range group {
				if v < -largest {
					lowest++
				}
			}
		}
	}
	return groups > 0 && float64(reached) >= reachedShare*float64(groups) && float64(lowest) <= lowestShare*float64(weights)
}
