// Package darwin has no code, only the tests of what is put around the program on macOS: the script that makes the bundle, run here with doubles of
// Apple's tools that note how they were called.
package darwin

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// tools are shell scripts in the place of a Mac's programs. Each notes its arguments in $CALLS; some make what they are asked to make.
var tools = map[string]string{
	"uname":    `echo Darwin`,
	"plutil":   `case "$2" in LSMinimumSystemVersion) echo 13.0 ;; CFBundleShortVersionString) echo 1.2.3 ;; esac`,
	"go":       `while [ "$1" != -o ]; do shift; done; touch "$2"`,
	"lipo":     `touch "$3"`,
	"codesign": ``,
	"ditto":    `for last; do :; done; touch "$last"`,
	"hdiutil":  `[ ! -e "$BUSY" ] || { rm "$BUSY"; exit 1; }; for last; do :; done; touch "$last"`,
	"sleep":    ``,
	"spctl":    ``,
	"xcrun":    `case "$*" in *"notarytool submit"*) echo "  id: 77"; echo "  status: ${VERDICT:-Accepted}" ;; *"notarytool log"*) echo "the signature is old" ;; esac`,
}

// pack runs package.sh in a copy of what it reads, and returns what it said and how the tools were called.
func pack(t *testing.T, what string, settings ...string) (output string, calls []string, err error) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"package.sh", "Info.plist", "entitlements.plist", "icon.icns"} {
		content, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "build/darwin", name), string(content))
	}
	for name, script := range tools {
		write(t, filepath.Join(dir, "tools", name), "#!/bin/bash\necho \"${0##*/} $* [GOARCH=${GOARCH:-} CGO_CFLAGS=${CGO_CFLAGS:-}]\" >>\"$CALLS\"\n"+script+"\n")
	}
	noted := filepath.Join(dir, "calls")
	cmd := exec.Command("/bin/bash", filepath.Join(dir, "build/darwin/package.sh"), what)
	cmd.Env = append([]string{"PATH=" + filepath.Join(dir, "tools") + ":/usr/bin:/bin", "CALLS=" + noted, "BUSY=" + filepath.Join(dir, "busy"), "TMPDIR=" + dir}, settings...)
	if slices.Contains(settings, "HDIUTIL=busy") {
		write(t, filepath.Join(dir, "busy"), "")
	}
	out, err := cmd.CombinedOutput()
	content, _ := os.ReadFile(noted)
	return string(out), strings.Split(strings.TrimSpace(string(content)), "\n"), err
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// inOrder tells whether the calls contain these texts one after the other.
func inOrder(calls []string, texts ...string) bool {
	for _, call := range calls {
		if len(texts) > 0 && strings.Contains(call, texts[0]) {
			texts = texts[1:]
		}
	}
	return len(texts) == 0
}

func TestWithoutAnIdentityTheAppIsSignedAdHocAndItSaysSo(t *testing.T) {
	output, calls, err := pack(t, "app")
	if err != nil {
		t.Fatal(err, output)
	}
	if !inOrder(calls, "go build", "lipo -create", "plutil -lint", "--options runtime --entitlements build/darwin/entitlements.plist -s - ", "codesign --verify --strict") ||
		inOrder(calls, "xcrun") || !strings.Contains(output, "COLIBRI_IDENTITY is not set") {
		t.Errorf("%s\n%s", output, strings.Join(calls, "\n"))
	}
	build := calls[slices.IndexFunc(calls, func(c string) bool { return strings.HasPrefix(c, "go build") })]
	if !strings.Contains(build, "GOARCH=arm64") || !strings.Contains(build, "-mmacosx-version-min=13.0") || !strings.Contains(build, "-tags desktop,production") {
		t.Errorf("built with %s", build)
	}
}

func TestWithAnIdentityAloneItSaysThatItIsNotNotarised(t *testing.T) {
	output, calls, err := pack(t, "app", "COLIBRI_IDENTITY=Developer ID Application: X (Y)")
	if err != nil || !inOrder(calls, "codesign --force --timestamp --options runtime", "codesign --verify") || inOrder(calls, "xcrun") || !strings.Contains(output, "COLIBRI_NOTARY is not set") {
		t.Errorf("%v\n%s\n%s", err, output, strings.Join(calls, "\n"))
	}
}

func TestAReleaseIsSignedNotarisedAndStapled(t *testing.T) {
	release := []string{"COLIBRI_IDENTITY=Developer ID Application: X (Y)", "COLIBRI_NOTARY=profile"}
	output, calls, err := pack(t, "app", release...)
	if err != nil || !inOrder(calls, "codesign --force", "codesign --verify", "ditto -c -k --keepParent", "xcrun notarytool submit build/bin/Colibri.zip --keychain-profile profile --wait",
		"xcrun stapler staple build/bin/Colibri.app", "spctl -a -vv -t exec build/bin/Colibri.app") || strings.Contains(output, "is not set") {
		t.Errorf("%v\n%s\n%s", err, output, strings.Join(calls, "\n"))
	}
	output, calls, err = pack(t, "dmg", append(release, "HDIUTIL=busy")...)
	if err != nil || !inOrder(calls, "stapler staple build/bin/Colibri.app", "hdiutil create", "hdiutil create", "codesign --force --timestamp -s Developer ID Application: X (Y) build/bin/Colibri-1.2.3.dmg",
		"notarytool submit build/bin/Colibri-1.2.3.dmg", "stapler staple build/bin/Colibri-1.2.3.dmg") {
		t.Errorf("%v\n%s\n%s", err, output, strings.Join(calls, "\n"))
	}
}

func TestWhatAppleRefusesEndsWithItsReasons(t *testing.T) {
	output, calls, err := pack(t, "app", "COLIBRI_IDENTITY=X", "COLIBRI_NOTARY=profile", "VERDICT=Invalid")
	if err == nil || !inOrder(calls, "notarytool submit", "notarytool log 77") || inOrder(calls, "stapler") || !strings.Contains(output, "the signature is old") || !strings.Contains(output, "Apple did not accept") {
		t.Errorf("%v\n%s\n%s", err, output, strings.Join(calls, "\n"))
	}
}

func TestAUniversalAppIsBuiltTwiceAndJoined(t *testing.T) {
	output, calls, err := pack(t, "app", "COLIBRI_ARCHS=arm64 x86_64")
	if err != nil || !inOrder(calls, "GOARCH=arm64", "GOARCH=amd64", "lipo -create -output build/bin/Colibri.app/Contents/MacOS/Colibri build/bin/Colibri-arm64 build/bin/Colibri-x86_64") {
		t.Errorf("%v\n%s\n%s", err, output, strings.Join(calls, "\n"))
	}
}

func TestWrongUseOfTheScript(t *testing.T) {
	for _, what := range []string{"zip", ""} {
		if output, _, err := pack(t, what); err == nil || !strings.Contains(output, "app|dmg") {
			t.Errorf("package.sh %q: %v, %s", what, err, output)
		}
	}
}

// The Finder shows icons from 16 to 512 points, twice as fine on good screens.
func TestTheIconHasAllSizes(t *testing.T) {
	icon, err := os.ReadFile("icon.icns")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(icon, []byte("icns")) || int(binary.BigEndian.Uint32(icon[4:])) != len(icon) {
		t.Fatal("icon.icns is no icon file")
	}
	kinds := map[string]bool{}
	for at := 8; at+8 <= len(icon); at += int(binary.BigEndian.Uint32(icon[at+4:])) {
		kinds[string(icon[at:at+4])] = true
	}
	for _, size := range [][]string{{"icp4", "is32", "ic04"}, {"icp5", "il32", "ic05", "ic11"}, {"ic07", "it32"}, {"ic08"}, {"ic09"}, {"ic10"}} {
		if !slices.ContainsFunc(size, func(kind string) bool { return kinds[kind] }) {
			t.Errorf("icon.icns has %v and none of %v", kinds, size)
		}
	}
}
