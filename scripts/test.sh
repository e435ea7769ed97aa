#!/usr/bin/env bash
# Runs every test of every layer and says at the end what ran where. A part that cannot run on this system is
# named, with what ran in its place; nothing is skipped in silence.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

passed=0; failed=0; failures=()
# part NAME COMMAND…: runs a part, keeps its output in the log, counts it.
part() {
  local name=$1 start=$SECONDS; shift
  printf '\n=== %s\n' "$name"
  if "$@"; then
    passed=$((passed + 1)); printf -- '--- ok: %s (%d s)\n' "$name" $((SECONDS - start))
  else
    failed=$((failed + 1)); failures+=("$name"); printf -- '--- FAILED: %s (%d s)\n' "$name" $((SECONDS - start))
  fi
}
note() { printf '\n*** %s\n' "$1"; }

. scripts/test-parts.sh

printf '\n%d passed, %d failed\n' "$passed" "$failed"
if [ "$failed" -gt 0 ]; then
  printf 'failed: %s\n' "${failures[@]}"
  exit 1
fi
