#!/usr/bin/env bash
# Starts the real window of Colibri.app on a Mac, waits until its page runs and the bundled model is loaded, takes a picture, ends the program.
# (On Linux e2e/window.test.mjs does this and more; a Mac lets no script type into a window without the owner's permission.)
#
#   usage: scripts/window-smoke.sh build/bin/Colibri.app
set -euo pipefail
app=${1:?usage: window-smoke.sh APP}
pictures=$(cd "$(dirname "$0")/.." && pwd)/test-results
patience_seconds=90
data=$(mktemp -d); program=''
clean_up() { [ -z "$program" ] || kill "$program" 2>/dev/null || true; rm -rf "$data"; }
trap clean_up EXIT

COLIBRI_DATA_DIR=$data "$app/Contents/MacOS/Colibri" >"$data/output" 2>&1 & program=$!
# The model is loaded when the page has asked for the state: this line in the log says that both came so far.
started=$SECONDS
until grep -qs 'msg=load ' "$data"/logs/*; do
  kill -0 "$program" 2>/dev/null || { cat "$data/output" "$data"/logs/* >&2; echo "window-smoke: the program ended by itself" >&2; exit 1; }
  [ $((SECONDS - started)) -lt $patience_seconds ] || { cat "$data"/logs/* >&2; echo "window-smoke: no page after $patience_seconds s" >&2; exit 1; }
  sleep 1
done
sleep 3 # what the page does after its start may fail too
mkdir -p "$pictures"
screencapture -x "$pictures/mac-window.png" || echo "window-smoke: no picture: this session may not record the screen"
if grep -h 'level=ERROR' "$data"/logs/*; then echo "window-smoke: the log has errors" >&2; exit 1; fi
kill "$program"
code=0; wait "$program" || code=$?
program=''
[ $code = 0 ] || { echo "window-smoke: the program ended with $code" >&2; exit 1; }
echo "window-smoke: the page ran, the model was loaded, the program ended cleanly"
