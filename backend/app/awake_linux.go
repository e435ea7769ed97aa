package app

import "os/exec"

// awakeCommand: Linux is where the app is developed, not where it must stay awake.
func awakeCommand() *exec.Cmd { return nil }
