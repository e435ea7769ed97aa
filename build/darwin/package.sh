#!/usr/bin/env bash
# Makes Colibri.app and Colibri.dmg on a Mac. Signs and notarises when an identity is given, and says what is missing when not.
#
#   usage: build/darwin/package.sh app|dmg
#
#   COLIBRI_ARCHS      "arm64" (default) or "arm64 x86_64" for a universal binary
#   COLIBRI_IDENTITY   "Developer ID Application: NAME (TEAM)"; without it the app is signed ad hoc: it runs here, and elsewhere after
#                      System Settings > Privacy & Security > Open Anyway
#   COLIBRI_NOTARY     a notarytool keychain profile (xcrun notarytool store-credentials NAME)
set -euo pipefail
cd "$(dirname "$0")/../.."
what=${1:?usage: package.sh app|dmg}
say() { printf 'package.sh: %s\n' "$*"; }
fail() { printf 'package.sh: %s\n' "$*" >&2; exit 1; }
[ "$(uname -s)" = Darwin ] || fail "the app is put together on a Mac: it needs codesign and hdiutil"

minimum=$(plutil -extract LSMinimumSystemVersion raw build/darwin/Info.plist)
version=$(plutil -extract CFBundleShortVersionString raw build/darwin/Info.plist)
app=build/bin/Colibri.app
dmg=build/bin/Colibri-$version.dmg

build_app() {
  rm -rf "$app"; mkdir -p "$app/Contents/MacOS" "$app/Contents/Resources"
  local binaries=() arch
  for arch in ${COLIBRI_ARCHS:-arm64}; do
    local goarch=$arch; [ "$arch" = x86_64 ] && goarch=amd64
    local out=build/bin/Colibri-$arch
    CGO_ENABLED=1 GOARCH=$goarch CC="clang -arch $arch" \
      CGO_CFLAGS="-O2 -mmacosx-version-min=$minimum" CGO_LDFLAGS="-mmacosx-version-min=$minimum" \
      go build -trimpath -tags desktop,production -ldflags "-s -w" -o "$out" .
    binaries+=("$out")
  done
  lipo -create -output "$app/Contents/MacOS/Colibri" "${binaries[@]}"
  rm -f "${binaries[@]}"
  cp build/darwin/Info.plist "$app/Contents/Info.plist"
  cp build/darwin/icon.icns "$app/Contents/Resources/icon.icns"
  printf 'APPL????' >"$app/Contents/PkgInfo"
  plutil -lint -s "$app/Contents/Info.plist"
  # One binary and no libraries: signing the bundle signs everything. An Apple silicon Mac starts nothing unsigned, so there is always a signature.
  if signed; then
    codesign --force --timestamp --options runtime --entitlements build/darwin/entitlements.plist -s "$COLIBRI_IDENTITY" "$app"
  else
    codesign --force --options runtime --entitlements build/darwin/entitlements.plist -s - "$app"
  fi
  codesign --verify --strict -vv "$app"
}

signed() { [ -n "${COLIBRI_IDENTITY:-}" ]; }
to_notarise() { signed && [ -n "${COLIBRI_NOTARY:-}" ]; }

# notarise ARCHIVE ITEM: sends an archive of a signed item to Apple, waits, and staples the ticket to the item.
notarise() {
  local answer id
  # notarytool ends with 0 for what Apple refused too: its words count.
  answer=$(xcrun notarytool submit "$1" --keychain-profile "$COLIBRI_NOTARY" --wait) || { echo "$answer" >&2; fail "$1 could not be sent to Apple"; }
  echo "$answer"
  case $answer in *"status: Accepted"*) ;; *)
    id=$(awk '$1 == "id:" { print $2; exit }' <<<"$answer")
    xcrun notarytool log "$id" --keychain-profile "$COLIBRI_NOTARY" >&2 || true
    fail "Apple did not accept $1: the log above says why"
  esac
  xcrun stapler staple "$2"
}

say_what_is_missing() {
  if ! signed; then say "COLIBRI_IDENTITY is not set: signed ad hoc, for this Mac only (see the head of this script)"
  elif ! to_notarise; then say "COLIBRI_NOTARY is not set: not notarised; other Macs open it after System Settings > Privacy & Security > Open Anyway"
  fi
}

case $what in
app)
  build_app
  if to_notarise; then
    archive=build/bin/Colibri.zip
    ditto -c -k --keepParent "$app" "$archive"
    notarise "$archive" "$app"
    rm -f "$archive"
    spctl -a -vv -t exec "$app"
  fi
  say_what_is_missing
  say "made $app"
  ;;
dmg)
  [ -d "$app" ] || "$0" app
  stage=$(mktemp -d); trap 'rm -rf "$stage"' EXIT
  ditto "$app" "$stage/Colibri.app"; ln -s /Applications "$stage/Applications"
  # The disk that hdiutil fills is now and then still busy (Spotlight looks at it) when it is to be let go.
  for try in 1 2 3; do
    if hdiutil create -quiet -volname Colibri -srcfolder "$stage" -format UDZO -ov "$dmg"; then break; fi
    [ $try -lt 3 ] || fail "hdiutil could not make $dmg"
    sleep 5
  done
  if signed; then codesign --force --timestamp -s "$COLIBRI_IDENTITY" "$dmg"; fi
  if to_notarise; then notarise "$dmg" "$dmg"; fi
  say_what_is_missing
  say "made $dmg"
  ;;
*) echo "usage: package.sh app|dmg" >&2; exit 2 ;;
esac
