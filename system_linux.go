package main

// installHooks has nothing to add on Linux: closing quits, drops carry paths only, and a desktop's sleep stops the program whole.
func (w *window) installHooks() {}
