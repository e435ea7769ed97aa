package chat

import "fmt"

// Fit drops the oldest questions with their answers until the rest has at most room tokens, and returns what it dropped. The
// system prompt and everything from the last question on always stay; if those alone are too long, that is an error. count
// gives a prompt's tokens; it is called at most log2(questions)+2 times.
func Fit(messages []Message, room int, count func([]Message) (int, error)) (kept, dropped []Message, err error) {
	system := 0
	if len(messages) > 0 && messages[0].Role == System {
		system = 1
	}
	// Cuts fall before questions, so that no answer stays without its own.
	var cuts []int
	for i := system; i < len(messages); i++ {
		if i == system || messages[i].Role == User {
			cuts = append(cuts, i)
		}
	}
	without := func(cut int) []Message {
		return append(append([]Message{}, messages[:system]...), messages[cut:]...)
	}
	tokens, err := count(messages)
	if err != nil || tokens <= room {
		return messages, nil, err
	}
	// The prompt grows with what is kept: look for the first cut that is short enough among cuts[low:].
	low, high := 1, len(cuts)
	for low < high {
		middle := (low + high) / 2
		if tokens, err = count(without(cuts[middle])); err != nil {
			return nil, nil, err
		}
		if tokens <= room {
			high = middle
		} else {
			low = middle + 1
		}
	}
	if low < len(cuts) {
		return without(cuts[low]), messages[system:cuts[low]], nil
	}
	return nil, nil, fmt.Errorf("the last question and the system prompt have %d tokens, and there is room for %d; shorten them", tokens, room)
}
