# shellcheck shell=bash
# The parts of the suite, in the order in which a mistake is found soonest. Sourced by test.sh. It runs under the bash 3.2 of macOS too.

check_format() {
  # The gofmt of the Go that go.mod asks for: the one on the PATH may be older, and of another opinion.
  local unformatted; unformatted=$(git ls-files -co --exclude-standard '*.go' | xargs "$(go env GOROOT)/bin/gofmt" -l)
  [ -z "$unformatted" ] || { printf 'gofmt would change:\n%s\n' "$unformatted"; return 1; }
}
check_scripts() { for s in scripts/*.sh build/darwin/*.sh .ci/run; do bash -n "$s" || return 1; done; }
lint_scripts() { shellcheck scripts/*.sh build/darwin/*.sh .ci/run; }

part "formatting of Go" check_format
part "shell scripts parse" check_scripts
if [ "$(uname -s)" = Linux ]; then part "shell scripts (shellcheck)" lint_scripts; fi
part "workflows (actionlint)" go tool actionlint
part "tokenizers for the tests" scripts/fetch-tokenizers.sh
part "go vet" go vet ./backend/... ./cmd/... ./scripts/... ./build/...
# Without Metal most of backend/metal's Go code has no caller: it is checked with the simulator's tag below.
static_check() { go list ./backend/... ./cmd/... ./scripts/... | grep -v '/metal$' | xargs go tool staticcheck; }
part "staticcheck" static_check
part "Go: every package" go test ./backend/... ./cmd/... ./scripts/... ./build/...
part "benchmark: figures to test-results/bench.json, the tokens' hashes as expected" make -s bench-check
part "Go: concurrent packages under the race detector" go test -race -short ./backend/residency ./backend/telemetry ./backend/chat/store ./backend/app
# Go's -asan exists for Linux only.
if [ "$(uname -s)" = Linux ]; then
  part "C kernels under AddressSanitizer and UBSan" env CGO_CFLAGS="-O1 -fsanitize=undefined -fno-sanitize-recover=all" CGO_LDFLAGS="-fsanitize=undefined" go test -asan -short ./backend/cpu
fi

sim_cc=$PWD/backend/metal/simulator/cc
if [ "$(uname -s)" = Linux ]; then
  note "no Apple GPU here: the Metal host and its shaders run in the simulator"
  part "Metal simulator builds" make -s -C backend/metal/simulator
  part "go vet of the Metal binding" env CC="$sim_cc" go vet -tags metalsim ./backend/metal/...
  part "Metal host and shaders in the simulator" env CC="$sim_cc" go test -short -timeout 40m -tags metalsim ./backend/metal/...
  part "Metal simulator with AddressSanitizer builds" make -s -C backend/metal/simulator ASAN=1
  part "Metal host under AddressSanitizer" env CC="$sim_cc" LSAN_OPTIONS="suppressions=$PWD/backend/metal/simulator/lsan.supp" \
    go test -asan -short -timeout 40m -run 'Additions|Removals|Registering|FailedRegistration|RegistryLock|GateOff|UnavailableSet|Unregister|RegisterInsists|RangesLonger' -tags metalsim ./backend/metal
else
  # The tests of the GPU are left out one by one where there is none that Colibri can use, as on most virtual machines.
  go run ./cmd/colibri doctor | grep '^metal .*not available' && note "this Mac has no GPU that Colibri can use: the tests of the GPU did not run"
  part "Metal host and shaders on this Mac's GPU" go test ./backend/metal/...
fi

frontend() { (cd frontend && npm run --silent "$1"); }
part "frontend: packages" make -s frontend/node_modules/.installed
part "frontend: formatting and lint" frontend lint
part "frontend: types" frontend check
part "frontend: units" frontend test
part "frontend: build" make -s frontend
part "licences of everything in the program" go run ./scripts/licences --check
if [ "$(uname -s)" = Linux ]; then
  part "window builds" make -s window window-dev
  part "window: go vet" bash -c 'go vet -tags desktop,production,webkit2_41 . && go vet -tags dev,webkit2_41 .'
  end_to_end() { (cd e2e && npm ci --silent --no-audit --no-fund && npm test); }
  part "the real backend in Chromium, the real window on a virtual screen" end_to_end
else
  part "window builds" make -s window
  note "the browser and window tests drive Chromium and an X screen: they run on Linux; here the window was built"
fi
