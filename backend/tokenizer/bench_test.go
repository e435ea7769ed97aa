package tokenizer

import (
	"path/filepath"
	"strings"
	"testing"
)

func BenchmarkLoad(b *testing.B) {
	for _, name := range realNames {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Load(filepath.Join("..", "..", "build", "cache", "tokenizers", name+".json")); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkLoadBundled(b *testing.B) {
	for b.Loop() {
		bundledTokenizer(b)
	}
}

func BenchmarkEncodeEnglish(b *testing.B) {
	text := strings.Repeat("The hummingbird hovered over the red flower for 3 seconds, then it flew away; nobody knows where.\n", 1<<20/98)
	for _, name := range realNames {
		tok := realTokenizer(b, name)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if _, err := tok.Encode(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
