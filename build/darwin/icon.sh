#!/usr/bin/env bash
# Draws icon.icns and ../appicon.png from icon.svg. Only needed after the drawing changes: both results are committed.
# Needs rsvg-convert (librsvg2-bin, or brew install librsvg) and iconutil (macOS) or png2icns (icnsutils).
set -euo pipefail
cd "$(dirname "$0")"
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
draw() { rsvg-convert -w "$1" -h "$1" icon.svg -o "$2"; }
draw 1024 ../appicon.png
if command -v iconutil >/dev/null; then
  set="$work/icon.iconset"; mkdir "$set"
  for size in 16 32 128 256 512; do
    draw $size "$set/icon_${size}x${size}.png"
    draw $((size * 2)) "$set/icon_${size}x${size}@2x.png"
  done
  iconutil -c icns "$set" -o icon.icns
else
  for size in 16 32 128 256 512 1024; do draw $size "$work/$size.png"; done
  png2icns icon.icns "$work"/{16,32,128,256,512,1024}.png >/dev/null
fi
