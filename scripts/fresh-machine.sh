#!/usr/bin/env bash
# Tries the README on a machine that has nothing: a new Debian in a folder, a user with an empty home, no caches. There it clones this
# repository (its last commit) and runs the README's two commands. The window of `make run` opens on a screen of this machine, is waited for
# until it is painted, photographed and closed.
#
#   usage: scripts/fresh-machine.sh [all|system|run|test]
#
#   COLIBRI_FRESH_ROOT    where the new system lies (default: build/cache/fresh-root); delete the folder to begin anew
#   COLIBRI_FRESH_SUITE   the Debian release (default: stable)
#
# Needs root, a Debian or Ubuntu with debootstrap, xvfb, xdotool and imagemagick, and the network; about 6 GB and half an hour.
set -euo pipefail
cd "$(dirname "$0")/.."
what=${1:-all}
repository=$PWD
root=${COLIBRI_FRESH_ROOT:-$PWD/build/cache/fresh-root}
suite=${COLIBRI_FRESH_SUITE:-stable}
say() { printf 'fresh-machine: %s\n' "$*"; }
fail() { printf 'fresh-machine: %s\n' "$*" >&2; exit 1; }

[ "$(uname -s)" = Linux ] || fail "the new machine is a Debian in a folder: run this on Linux"
[ "$(id -u)" = 0 ] || fail "run this as root: a new system is made and entered"
for program in debootstrap Xvfb xdotool import identify; do
  command -v $program >/dev/null || fail "$program is missing: apt-get install debootstrap xvfb xdotool imagemagick"
done

# What is mounted in the root and what was started for it ends with this script.
screen='' program=''
clean_up() {
  [ -z "$program" ] || kill -- "-$program" 2>/dev/null || true
  [ -z "$screen" ] || kill "$screen" 2>/dev/null || true
  local at
  for at in tmp/.X11-unix proc dev/shm dev/pts dev sys source; do
    mountpoint -q "$root/$at" && umount -l "$root/$at"
  done
  return 0
}
trap clean_up EXIT

enter() {
  [ -x "$root/usr/bin/sudo" ] || fail "$root holds no system yet: run scripts/fresh-machine.sh system"
  mkdir -p "$root/source"
  mount --bind "$repository" "$root/source" && mount -o remount,ro,bind "$root/source"
  mount -t proc proc "$root/proc"; mount -t sysfs sysfs "$root/sys"
  mount --bind /dev "$root/dev"; mount --bind /dev/pts "$root/dev/pts"; mount -t tmpfs tmpfs "$root/dev/shm"
  cp -L /etc/resolv.conf "$root/etc/resolv.conf"
  grep -q "$(hostname)" "$root/etc/hosts" 2>/dev/null || printf "127.0.0.1 localhost %s\n" "$(hostname)" >>"$root/etc/hosts"
}

# as_newcomer COMMAND: in a shell of the new user. Only settings of the network are handed on.
as_newcomer() {
  chroot "$root" sudo -u newcomer env -i HOME=/home/newcomer USER=newcomer LANG=C.UTF-8 PATH=/usr/local/bin:/usr/bin:/bin \
    ${https_proxy:+https_proxy="$https_proxy"} ${http_proxy:+http_proxy="$http_proxy"} \
    ${NODE_EXTRA_CA_CERTS:+NODE_EXTRA_CA_CERTS=/etc/ssl/certs/ca-certificates.crt} \
    ${DISPLAY:+DISPLAY="$DISPLAY"} bash -c "cd ~ && $1"
}

make_system() {
  if [ -x "$root/usr/bin/sudo" ]; then say "$root is there already"; else
    say "Debian $suite into $root"
    debootstrap --variant=minbase --include=ca-certificates,git,make,sudo "$suite" "$root" >"$root.log" 2>&1 || fail "debootstrap failed: see $root.log"
  fi
  # Certificates that this machine trusts beyond Debian's own.
  if compgen -G '/usr/local/share/ca-certificates/*.crt' >/dev/null; then
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/"
    chroot "$root" update-ca-certificates >/dev/null 2>&1
  fi
  chroot "$root" id newcomer >/dev/null 2>&1 || chroot "$root" useradd -m -s /bin/bash newcomer
  echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
}

clone() {
  # The repository belongs to another user there, which git refuses unless told.
  as_newcomer 'git config --global --add safe.directory "*" && rm -rf colibri && git clone -q /source colibri && git -C colibri log --oneline -1'
}

# try_run: the first command of the README, until the window is painted.
try_run() {
  local shown file=test-results/fresh-machine.png log=$root.run.log started=$SECONDS
  mkdir -p test-results
  rm -f "$root.display" # of an earlier run
  Xvfb -displayfd 3 -screen 0 1280x860x24 3>"$root.display" 2>/dev/null & screen=$!
  until [ -s "$root.display" ]; do sleep 0.2; done
  DISPLAY=:$(cat "$root.display"); export DISPLAY
  mkdir -p "$root/tmp/.X11-unix"; chmod 1777 "$root/tmp/.X11-unix"; mount --bind /tmp/.X11-unix "$root/tmp/.X11-unix"
  say "make run"
  set -m; as_newcomer 'cd colibri && make run' >"$log" 2>&1 & program=$!; set +m
  while :; do
    kill -0 "$program" 2>/dev/null || { tail -40 "$log" >&2; fail "make run ended before a window came"; }
    shown=$(xdotool search --onlyvisible --name '^Colibri$' 2>/dev/null | head -1) || true
    if [ -n "$shown" ] && import -window "$shown" "$file" 2>/dev/null && [ "$(identify -format %k "$file")" -gt 50 ]; then break; fi
    sleep 1
  done
  say "window painted after $((SECONDS - started)) s: $file"
  sleep 3; import -window "$shown" "$file"
  kill -- "-$program"; wait "$program" 2>/dev/null || true; program=''
  unset DISPLAY
}

try_test() {
  say "make test"
  as_newcomer 'cd colibri && make test' 2>&1 | tee "$root.test.log"
}

case $what in
system) make_system; enter; clone ;;
run) enter; try_run ;;
test) enter; try_test ;;
all) make_system; enter; clone; try_run; try_test ;;
*) echo "usage: scripts/fresh-machine.sh [all|system|run|test]" >&2; exit 2 ;;
esac
say "done: $what"
