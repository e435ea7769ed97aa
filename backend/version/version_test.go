package version

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"testing"

	"howett.net/plist"
)

// readPlist parses a property list beside the bundle.
func readPlist(t *testing.T, path string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var values map[string]any
	if _, err := plist.Unmarshal(content, &values); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return values
}

func TestInfoPlistSaysWhatTheCodeSays(t *testing.T) {
	info := readPlist(t, "../../build/darwin/Info.plist")
	for key, want := range map[string]any{
		"CFBundleIdentifier": BundleID, "CFBundleShortVersionString": Number, "CFBundleVersion": Number,
		"LSMinimumSystemVersion": MinimumSystem, "CFBundleIconFile": "icon", "CFBundleExecutable": "Colibri",
		"NSHighResolutionCapable": true, "NSSupportsAutomaticTermination": false, "NSSupportsSuddenTermination": false,
	} {
		if info[key] != want {
			t.Errorf("%s is %v, want %v", key, info[key], want)
		}
	}
	types := info["UTExportedTypeDeclarations"].([]any)
	exported := types[0].(map[string]any)
	if len(types) != 1 || exported["UTTypeIdentifier"] != ModelTypeID {
		t.Errorf("exported types: %v", types)
	}
	// public.data would make the Finder treat the folder as a flat file.
	conforms := exported["UTTypeConformsTo"].([]any)
	if !slices.Contains(conforms, any("com.apple.package")) || slices.Contains(conforms, any("public.data")) {
		t.Errorf("the model type conforms to %v", conforms)
	}
	extensions := exported["UTTypeTagSpecification"].(map[string]any)["public.filename-extension"].([]any)
	if len(extensions) != 1 || extensions[0] != "colibri" {
		t.Errorf("extensions: %v", extensions)
	}
	documents := info["CFBundleDocumentTypes"].([]any)
	model, folder := documents[0].(map[string]any), documents[1].(map[string]any)
	if model["LSItemContentTypes"].([]any)[0] != ModelTypeID || model["LSTypeIsPackage"] != true || model["LSHandlerRank"] != "Owner" {
		t.Errorf("model documents: %v", model)
	}
	if folder["LSItemContentTypes"].([]any)[0] != "public.folder" || folder["LSHandlerRank"] != "Alternate" {
		t.Errorf("folders must stay the Finder's: %v", folder)
	}
}

func TestEntitlementsAreEmpty(t *testing.T) {
	if granted := readPlist(t, "../../build/darwin/entitlements.plist"); len(granted) != 0 {
		t.Errorf("the app needs no entitlement, these are asked for: %v", granted)
	}
}

func TestWailsProjectSaysWhatTheCodeSays(t *testing.T) {
	content, err := os.ReadFile("../../wails.json")
	if err != nil {
		t.Fatal(err)
	}
	var project struct {
		Name string
		Info struct{ ProductName, ProductVersion string }
	}
	if err := json.Unmarshal(content, &project); err != nil {
		t.Fatal(err)
	}
	if project.Info.ProductVersion != Number || project.Info.ProductName != "Colibri" {
		t.Errorf("wails.json: %+v", project)
	}
}

// The changelog names the unreleased first, then this version with the day it came out; a version is never named twice.
func TestChangelogBeginsWithThisVersion(t *testing.T) {
	content, err := os.ReadFile("../../CHANGELOG.md")
	if err != nil {
		t.Fatal(err)
	}
	headings := regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(string(content), -1)
	released := regexp.MustCompile(`^\[([0-9]+\.[0-9]+\.[0-9]+)\] - [0-9]{4}-[0-9]{2}-[0-9]{2}$`)
	if len(headings) < 2 || headings[0][1] != "[Unreleased]" {
		t.Fatalf("CHANGELOG.md has the sections %q; [Unreleased] comes first", headings)
	}
	seen := map[string]bool{}
	for i, h := range headings[1:] {
		m := released.FindStringSubmatch(h[1])
		if m == nil || seen[m[1]] {
			t.Errorf("section %q is not a new [version] - year-month-day", h[1])
			continue
		}
		seen[m[1]] = true
		if i == 0 && m[1] != Number {
			t.Errorf("the newest release in CHANGELOG.md is %s, the code says %s", m[1], Number)
		}
	}
}

// npm wants a version in each package.json; they are private, and say what the program says.
func TestPackagesSayWhatTheCodeSays(t *testing.T) {
	for _, path := range []string{"../../frontend/package.json", "../../e2e/package.json"} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var p struct {
			Version string
			Private bool
		}
		if err := json.Unmarshal(content, &p); err != nil || p.Version != Number || !p.Private {
			t.Errorf("%s: %+v, %v", path, p, err)
		}
	}
}
