package engine

import (
	"cmp"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
)

// Sampling says how a token is chosen from logits. Start from DefaultSampling or Greedy: the zero value is not valid,
// because 0 would mean "off" in one field and "everything" in another.
//
// The steps are, in this order: repetition penalty, presence penalty, temperature, top-k, top-p, min-p, draw.
type Sampling struct {
	Temperature       float64 // 0 or below: the most likely token, the lowest id among equals
	TopK              int     // keep the k most likely tokens; 0: off
	TopP              float64 // keep the smallest set of likeliest tokens with this much probability together; 1: off
	MinP              float64 // drop tokens less likely than this share of the likeliest one's probability; 0: off
	RepetitionPenalty float64 // divides positive and multiplies negative logits of tokens seen in prompt or answer; 1: off
	PresencePenalty   float64 // subtracted from logits of tokens seen in the answer; 0: off
	Seed              int64   // −1: a fresh one, reported in Result.Seed
}

// DefaultSampling suits conversation.
func DefaultSampling() Sampling {
	return Sampling{Temperature: 0.7, TopP: 0.9, RepetitionPenalty: 1, Seed: -1}
}

// Greedy always takes the most likely token.
func Greedy() Sampling { return Sampling{TopP: 1, RepetitionPenalty: 1} }

// Validate refuses settings that have no meaning, in one sentence that names the setting and its range.
func (s *Sampling) Validate() error {
	outside := func(v, low, high float64) bool { return math.IsNaN(v) || v < low || v > high }
	switch {
	case math.IsNaN(s.Temperature) || math.IsInf(s.Temperature, 0):
		return fmt.Errorf("temperature is %g; it must be a number (0 always takes the likeliest token)", s.Temperature)
	case s.TopK < 0:
		return fmt.Errorf("top-k is %d; it must be 0 (off) or more", s.TopK)
	case outside(s.TopP, 0, 1) || s.TopP == 0:
		return fmt.Errorf("top-p is %g; it must be above 0 and at most 1 (off)", s.TopP)
	case outside(s.MinP, 0, 1):
		return fmt.Errorf("min-p is %g; it must be between 0 (off) and 1", s.MinP)
	case outside(s.RepetitionPenalty, 0, math.MaxFloat32) || s.RepetitionPenalty == 0:
		return fmt.Errorf("repetition penalty is %g; it must be above 0 (1 is off)", s.RepetitionPenalty)
	case outside(s.PresencePenalty, -math.MaxFloat32, math.MaxFloat32):
		return fmt.Errorf("presence penalty is %g; it must be a number (0 is off)", s.PresencePenalty)
	case s.Seed < -1:
		return fmt.Errorf("seed is %d; it must be 0 or more, or -1 for a fresh one", s.Seed)
	}
	return nil
}

// sampler chooses the tokens of one answer. The draw for the n-th token depends on the seed and on n only: speculative
// decoding drafts and verifies a token with the same draw.
type sampler struct {
	Sampling
	inPrompt   map[int32]struct{} // for the repetition penalty
	inAnswer   map[int32]struct{}
	logits     []float32 // a copy, where penalties change it
	candidates []candidate
}

type candidate struct {
	id     int32
	weight float64 // probability up to a common factor
}

func newSampler(settings Sampling, prompt []int32) (*sampler, error) {
	if err := settings.Validate(); err != nil {
		return nil, err
	}
	if settings.Seed == -1 {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			return nil, fmt.Errorf("no fresh seed: %w", err)
		}
		// 53 bits: a seed that is shown in JavaScript can be typed back.
		settings.Seed = int64(binary.LittleEndian.Uint64(b[:]) >> 11)
	}
	s := &sampler{Sampling: settings}
	if s.RepetitionPenalty != 1 {
		s.inPrompt = make(map[int32]struct{}, len(prompt))
		for _, id := range prompt {
			s.inPrompt[id] = struct{}{}
		}
	}
	if s.penalises() {
		s.inAnswer = map[int32]struct{}{}
	}
	return s, nil
}

func (s *sampler) penalises() bool { return s.RepetitionPenalty != 1 || s.PresencePenalty != 0 }

// accept records a token of the answer for the penalties.
func (s *sampler) accept(id int32) {
	if s.inAnswer != nil {
		s.inAnswer[id] = struct{}{}
	}
}

var (
	errNaN      = errors.New("a logit is not a number")
	errNoChoice = errors.New("no token has a probability above zero")
)

// choose picks the n-th token of the answer. It does not change logits, which for a draft may end before the vocabulary does.
func (s *sampler) choose(logits []float32, n int) (int32, error) {
	logits = s.penalise(logits)
	best, err := likeliest(logits)
	if err != nil {
		return 0, err
	}
	if s.Temperature <= 0 || s.TopK == 1 {
		return best, nil
	}
	s.collect(logits, logits[best])
	return draw(s.candidates, uniform(s.Seed, n)), nil
}

// likeliest is the greatest logit's id, the lowest among equals.
func likeliest(logits []float32) (int32, error) {
	best := int32(-1)
	top := float32(math.Inf(-1))
	for i, l := range logits {
		if l > top {
			best, top = int32(i), l
		} else if l != l {
			return 0, errNaN
		}
	}
	if best < 0 {
		return 0, errNoChoice
	}
	return best, nil
}

func (s *sampler) penalise(logits []float32) []float32 {
	if !s.penalises() || len(s.inPrompt)+len(s.inAnswer) == 0 {
		return logits
	}
	s.logits = append(s.logits[:0], logits...)
	repetition, presence := float32(s.RepetitionPenalty), float32(s.PresencePenalty)
	repeat := func(id int32) {
		if int(id) >= len(s.logits) {
			return
		}
		if l := s.logits[id]; l > 0 {
			s.logits[id] = l / repetition
		} else {
			s.logits[id] = l * repetition
		}
	}
	for id := range s.inPrompt {
		repeat(id)
	}
	for id := range s.inAnswer {
		if _, done := s.inPrompt[id]; !done {
			repeat(id)
		}
		if int(id) < len(s.logits) {
			s.logits[id] -= presence
		}
	}
	return s.logits
}

// collect fills s.candidates with what temperature, top-k, top-p and min-p leave: the likeliest token at least, whose weight is 1.
func (s *sampler) collect(logits []float32, top float32) {
	s.candidates = s.weigh(s.candidates[:0], logits, top)
	s.candidates = s.nucleus(s.candidates)
	if s.MinP > 0 {
		s.candidates = slices.DeleteFunc(s.candidates, func(c candidate) bool { return c.weight < s.MinP })
	}
}

// weigh lists the tokens of positive probability in ascending order of id.
func (s *sampler) weigh(list []candidate, logits []float32, top float32) []candidate {
	if math.IsInf(float64(top), 1) {
		// Differences to an infinite logit are NaN; the tokens that share it are equally likely.
		for i, l := range logits {
			if l == top {
				list = append(list, candidate{int32(i), 1})
			}
		}
		return list
	}
	for i, l := range logits {
		// 0: masked (−Inf), or too unlikely for a float64.
		if w := math.Exp((float64(l) - float64(top)) / s.Temperature); w > 0 {
			list = append(list, candidate{int32(i), w})
		}
	}
	return list
}

// nucleus applies top-k, then top-p to what top-k left.
func (s *sampler) nucleus(list []candidate) []candidate {
	limited := s.TopK > 0 && s.TopK < len(list)
	if !limited && s.TopP >= 1 {
		return list
	}
	total := sum(list)
	if !limited {
		// Tokens below (1−p)/n cannot belong to the nucleus: all of them together weigh less than 1−p. Dropping them before
		// sorting leaves tens of candidates where the vocabulary has a hundred thousand.
		floor := min(1, total*(1-s.TopP)/float64(len(list)))
		list = slices.DeleteFunc(list, func(c candidate) bool { return c.weight < floor })
	}
	slices.SortFunc(list, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(b.weight, a.weight), cmp.Compare(a.id, b.id))
	})
	if limited {
		list = list[:s.TopK]
		total = sum(list)
	}
	reached := 0.0
	for i, c := range list {
		if reached += c.weight; reached >= s.TopP*total {
			return list[:i+1]
		}
	}
	return list
}

func sum(list []candidate) float64 {
	total := 0.0
	for _, c := range list {
		total += c.weight
	}
	return total
}

// draw maps u in [0, 1) to a candidate; the draw is scaled by the sum of weights, so that they need not be normalised.
func draw(list []candidate, u float64) int32 {
	target, reached := u*sum(list), 0.0
	for _, c := range list {
		if reached += c.weight; reached > target {
			return c.id
		}
	}
	return list[len(list)-1].id
}

// uniform is the n-th number in [0, 1) of a seed's sequence: splitmix64 (Steele, Lea, Flood 2014) of its n-th state.
func uniform(seed int64, n int) float64 {
	z := uint64(seed)*0xD1342543DE82EF95 + uint64(n+1)*0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	z ^= z >> 31
	return float64(z>>11) / (1 << 53)
}
