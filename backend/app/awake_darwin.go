package app

import (
	"os"
	"os/exec"
	"strconv"
)

// awakeCommand: -i is the idle *system* sleep assertion (never -d, the display's); -w ends it with this process.
func awakeCommand() *exec.Cmd {
	return exec.Command("/usr/bin/caffeinate", "-i", "-w", strconv.Itoa(os.Getpid()))
}
