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
[ "$(uname -s)" = Darwin ] || { echo "package.sh: the app is put together on a Mac: it needs codesign and hdiutil" >&2; exit 1; }

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
  if [ -n "${COLIBRI_IDENTITY:-}" ]; then
    codesign --force --timestamp --options runtime --entitlements build/darwin/entitlements.plist -s "$COLIBRI_IDENTITY" "$app"
  else
    echo "package.sh: COLIBRI_IDENTITY is not set: signed ad hoc, for this Mac only"
    codesign --force --options runtime --entitlements build/darwin/entitlements.plist -s - "$app"
  fi
  codesign --verify --strict -vv "$app"
}

# notarise FILE: sends a signed archive to Apple and staples the ticket to what it holds.
notarise() {
  if [ -z "${COLIBRI_IDENTITY:-}" ] || [ -z "${COLIBRI_NOTARY:-}" ]; then
    echo "package.sh: not notarised: set COLIBRI_IDENTITY and COLIBRI_NOTARY (see the head of this script)"
    return
  fi
  xcrun notarytool submit "$1" --keychain-profile "$COLIBRI_NOTARY" --wait
}

case $what in
app)
  build_app
  if [ -n "${COLIBRI_IDENTITY:-}" ] && [ -n "${COLIBRI_NOTARY:-}" ]; then
    archive=build/bin/Colibri.zip
    ditto -c -k --keepParent "$app" "$archive"
    notarise "$archive"; xcrun stapler staple "$app"; rm -f "$archive"
  else
    notarise "$app"
  fi
  echo "made $app"
  ;;
dmg)
  [ -d "$app" ] || "$0" app
  stage=$(mktemp -d); trap 'rm -rf "$stage"' EXIT
  ditto "$app" "$stage/Colibri.app"; ln -s /Applications "$stage/Applications"
  hdiutil create -quiet -volname Colibri -srcfolder "$stage" -format UDZO -ov "$dmg"
  if [ -n "${COLIBRI_IDENTITY:-}" ]; then codesign --timestamp -s "$COLIBRI_IDENTITY" "$dmg"; fi
  notarise "$dmg"
  if [ -n "${COLIBRI_IDENTITY:-}" ] && [ -n "${COLIBRI_NOTARY:-}" ]; then xcrun stapler staple "$dmg"; fi
  echo "made $dmg"
  ;;
*) echo "usage: package.sh app|dmg" >&2; exit 2 ;;
esac
