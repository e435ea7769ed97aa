//go:build metalsim && linux

package metal

// The simulator's library stands in for the system's Metal.
import _ "colibri/backend/metal/simulator"
