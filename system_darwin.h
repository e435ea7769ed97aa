// What Wails leaves out of a macOS program; see system_darwin.m.
#pragma once

// colibri_install_hooks may be called from any thread, once, after the program has a delegate.
void colibri_install_hooks(void);
// colibri_reply_terminate lets a log-out or restart go on that colibriLoggingOut held up.
void colibri_reply_terminate(void);
