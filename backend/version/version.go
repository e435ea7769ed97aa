// Package version names this build. The bundle's Info.plist and wails.json repeat these values; a test beside
// build/darwin keeps them equal.
package version

const (
	// Number follows semantic versioning; what is new in it stands in CHANGELOG.md.
	Number = "0.1.0"
	// BundleID identifies the app to macOS: preferences, single instance, file types.
	BundleID = "app.colibri.Colibri"
	// ModelTypeID is the uniform type identifier of .colibri packages.
	ModelTypeID = "app.colibri.model"
	// MinimumSystem is the oldest macOS the app starts on.
	MinimumSystem = "13.0"
)
