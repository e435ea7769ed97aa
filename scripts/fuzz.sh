#!/usr/bin/env bash
# Runs every fuzz target of the project for the given time each. usage: scripts/fuzz.sh 60s
set -euo pipefail
cd "$(dirname "$0")/.."
duration=${1:-60s}
grep -rlE '^func Fuzz' --include='*_test.go' backend cmd | while read -r file; do
  package=./$(dirname "$file")
  grep -oE '^func Fuzz[A-Za-z0-9_]*' "$file" | awk '{print $2}' | while read -r target; do
    printf '=== %s %s\n' "$package" "$target"
    # Go would otherwise spend most of the time shrinking inputs that are merely new.
    go test "$package" -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 5x
  done
done
