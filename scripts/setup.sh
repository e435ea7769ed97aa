#!/usr/bin/env bash
# Installs what building and testing Colibri needs and this machine lacks. Says what it does; does nothing twice.
# usage: scripts/setup.sh run|test|cli
set -euo pipefail
purpose=${1:-run}
say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

# Go 1.21 and later fetch the toolchain that go.mod names by themselves.
go_is_usable() {
  command -v go >/dev/null 2>&1 || return 1
  local version; version=$(GOTOOLCHAIN=local go env GOVERSION 2>/dev/null) || return 1
  version=${version#go1.}; version=${version%%[!0-9]*}
  [ "${version:-0}" -ge 21 ]
}
# Vite needs Node 20.19 or later.
node_is_usable() {
  command -v node >/dev/null 2>&1 && command -v npm >/dev/null 2>&1 &&
    node -e 'const [a,b]=process.versions.node.split(".").map(Number);process.exit(a>20||(a===20&&b>=19)?0:1)'
}

case "$(uname -s)" in
Darwin)
  xcode-select -p >/dev/null 2>&1 || { xcode-select --install || true; fail "finish installing the Xcode command line tools in the window that opened, then run this again"; }
  missing=()
  go_is_usable || missing+=(go)
  [ "$purpose" = cli ] || node_is_usable || missing+=(node)
  if [ ${#missing[@]} -gt 0 ]; then
    command -v brew >/dev/null 2>&1 || fail "${missing[*]} missing: install Homebrew (https://brew.sh) or these programs yourself, then run this again"
    say "brew install ${missing[*]}"
    brew install "${missing[@]}"
  fi
  ;;
Linux)
  command -v apt-get >/dev/null 2>&1 || fail "only Debian and Ubuntu are set up automatically; see README.md for the list of packages"
  packages=(gcc libc6-dev make git ca-certificates)
  [ "$purpose" = cli ] || packages+=(libgtk-3-dev libwebkit2gtk-4.1-dev pkg-config)
  if [ "$purpose" = test ]; then
    packages+=(
      xvfb xdotool imagemagick openbox x11-utils xauth fonts-dejavu-core # a screen for the real window
      clang-19 lld-19 llvm-19 libclang-rt-19-dev                        # sanitizers, Objective-C, the shaders as C++
      gobjc libgnustep-base-dev libboost-context-dev                    # the Metal simulator
      shellcheck                                                        # the shell scripts
    )
    # Ubuntu has no such package, only a snap that an unattended test cannot drive.
    chromium=${CHROMIUM:-/usr/bin/chromium}
    [ -x "$chromium" ] || packages+=(chromium) # the browser tests
  fi
  missing=()
  for p in "${packages[@]}"; do
    dpkg-query -W -f='${Status}' "$p" 2>/dev/null | grep -q 'install ok installed' || missing+=("$p")
  done
  go_is_usable || missing+=(golang-go)
  [ "$purpose" = cli ] || node_is_usable || missing+=(nodejs npm)
  if [ ${#missing[@]} -gt 0 ]; then
    sudo=(); [ "$(id -u)" = 0 ] || sudo=(sudo)
    say "apt-get install ${missing[*]}"
    "${sudo[@]}" apt-get update -qq
    case " ${missing[*]} " in *" chromium "*)
      apt-cache show chromium >/dev/null 2>&1 || fail "this system has no Chromium package: install Chromium or Chrome and set CHROMIUM to its path, then run this again"
    esac
    # sudo empties the environment, so the setting goes through env: a question would wait for ever behind the quiet output.
    "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
  fi
  go_is_usable || fail "the Go of this system is older than 1.21: install Go from https://go.dev/dl and run this again"
  [ "$purpose" = cli ] || node_is_usable || fail "the Node.js of this system is older than 20.19: install it from https://nodejs.org and run this again"
  ;;
*) fail "Colibri is built on macOS, and for tests on Debian or Ubuntu; this is $(uname -s)" ;;
esac
