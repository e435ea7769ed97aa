package metal

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// The host as a Mac's compiler sees it: an object for arm64 macOS against the project's own declarations of the system, warnings as
// errors, with an SDK that has residency sets and with one that has not.
func TestHostCompilesForMacOS(t *testing.T) {
	clang, err := exec.LookPath("clang-19")
	if err != nil {
		if clang, err = exec.LookPath("clang"); err != nil {
			t.Skip("no clang here: the host was not compiled for macOS")
		}
	}
	files, err := filepath.Glob("metal_*.m")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d host files (%v)", len(files), err)
	}
	for _, sdk := range []string{"130300", "140000", "150000", "260000"} {
		for _, file := range files {
			out, err := exec.Command(clang, "-target", "arm64-apple-macos14", "-fno-objc-arc", "-nostdlibinc", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion",
				"-Wunguarded-availability-new", "-Werror", "-Wno-gnu", "-isystem", "declarations/system", "-isystem", "declarations/foundation", "-isystem", "declarations/metal",
				"-D__MAC_OS_X_VERSION_MAX_ALLOWED="+sdk, "-O2", "-c", file, "-o", filepath.Join(t.TempDir(), "host.o")).CombinedOutput()
			if err != nil {
				t.Errorf("%s with SDK %s: %v\n%s", file, sdk, err, out)
			}
		}
	}
}
