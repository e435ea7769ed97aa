# The parts of the suite, in the order in which a mistake is found soonest. Sourced by test.sh.

check_format() {
  local unformatted; unformatted=$(git ls-files -co --exclude-standard '*.go' | xargs gofmt -l)
  [ -z "$unformatted" ] || { printf 'gofmt would change:\n%s\n' "$unformatted"; return 1; }
}
check_scripts() { for s in scripts/*.sh build/darwin/*.sh .ci/run; do bash -n "$s" || return 1; done; }
go_packages() { go list ./backend/... ./cmd/...; }

part "formatting of Go" check_format
part "shell scripts parse" check_scripts
part "workflows (actionlint)" go tool actionlint
part "tokenizers for the tests" scripts/fetch-tokenizers.sh
part "go vet" go vet ./backend/... ./cmd/...
part "staticcheck" go tool staticcheck ./backend/... ./cmd/...
part "Go: every package" go test ./backend/... ./cmd/...
part "Go: concurrent packages under the race detector" go test -race -short ./backend/residency ./backend/telemetry ./backend/chat/store ./backend/app
