package main

import "testing"

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "600MB": 600e6, "600 mb": 600e6, "8G": 8e9, "8GiB": 8 << 30, "1.5k": 1500, "2T": 2e12, "4096B": 4096, "3MiB": 3 << 20,
	} {
		if got, err := parseBytes(text); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "B", "G", "-1", "0", "NaN", "Inf", "1e30", "8X", "1 2"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q was read as %d", text, got)
		}
	}
}
