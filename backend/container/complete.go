package container

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

func sortedKeys(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

// few lists the first names of many.
func few(names []string) string {
	const shown = 4
	if len(names) <= shown {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:shown], ", "), len(names)-shown)
}

// enoughMissing ends the search: a config.json that asks for far more than the files hold is refused without
// describing all of it first.
const enoughMissing = 10_000

// miss notes a tensor that is not there.
func (r *resolver) miss(name string) {
	r.missingCount++
	if len(r.missing) < 4 {
		r.missing = append(r.missing, name)
	}
}

// complete refuses a container with missing tensors, and says which files of a numbered sequence are absent.
func (r *resolver) complete() error {
	if r.missingCount == 0 {
		return nil
	}
	names := r.missing
	if more := r.missingCount - len(names); more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	shards := make([]string, len(r.c.shards))
	for i, s := range r.c.shards {
		shards[i] = s.name
	}
	where := "download the files that hold them"
	if gaps := missingNumbers(shards); len(gaps) > 0 {
		where = "missing from the numbered files: " + few(gaps) + "; download them"
	} else if last := shards[len(shards)-1]; numbered.MatchString(last) {
		where = fmt.Sprintf("the numbered files have no gaps, so files after %s may be missing (or config.json belongs to another model); download the rest", last)
	}
	count := fmt.Sprint(r.missingCount)
	if r.missingCount >= enoughMissing {
		count = "more than " + count
	}
	return fmt.Errorf("the model is incomplete: %s tensors are missing (%s); %s", count, strings.Join(names, ", "), where)
}

var numbered = regexp.MustCompile(`^(.*?)(\d{2,6})(-of-(\d{2,6}))?\.safetensors$`)

// missingNumbers finds the gaps in numbered file names: "out-00001.safetensors" when out-00000 and out-00002 are there, all
// that "-of-00163" promises.
func missingNumbers(names []string) []string {
	type sequence struct {
		prefix, suffix string
		width          int
	}
	present := map[sequence]map[int]bool{}
	for _, name := range names {
		m := numbered.FindStringSubmatch(name)
		if m == nil {
			continue
		}
		key := sequence{m[1], m[3], len(m[2])}
		if present[key] == nil {
			present[key] = map[int]bool{}
		}
		n, _ := strconv.Atoi(m[2])
		present[key][n] = true
	}
	var gaps []string
	for key, have := range present {
		// "out-00000" counts from zero, "00001-of-00163" from one unless there is a zero.
		first, last := 0, slices.Max(slices.Collect(maps.Keys(have)))
		if key.suffix != "" {
			last, _ = strconv.Atoi(strings.TrimPrefix(key.suffix, "-of-"))
			if have[0] {
				last--
			} else {
				first = 1
			}
		}
		if last-first > 100*maxShards {
			continue
		}
		for n := first; n <= last; n++ {
			if !have[n] {
				gaps = append(gaps, fmt.Sprintf("%s%0*d%s.safetensors", key.prefix, key.width, n, key.suffix))
			}
		}
	}
	slices.Sort(gaps)
	return gaps
}
