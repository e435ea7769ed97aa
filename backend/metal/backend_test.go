//go:build (darwin && cgo) || metalsim

package metal

import "testing"

func TestOpen(t *testing.T) {
	b, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	t.Log(b.Name(), b.Counters())
}
