//go:build darwin && cgo

package metal

import "testing"

// open opens the machine's GPU; there is none on virtual machines.
func open(t testing.TB) *Backend {
	t.Helper()
	if !Available() {
		t.Skip("this machine has no GPU that Colibri can use (virtual Macs have none): no kernel ran; on Linux, -tags metalsim runs this test")
	}
	b, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	return b
}
