# Shared by the scripts beside it: sourced, not run.

say() { printf 'headrace: %s\n' "$*" >&2; }

die() {
  say "$*"
  exit 1
}

# Prints the words that run a command as root: nothing for root itself, `sudo -n` where that asks no password. Fails where neither is so.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    return 0
  elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
    echo "sudo -n"
  else
    return 1
  fi
}

# apt_install WHY PACKAGE...: installs Debian packages, or says in a sentence which command does and fails.
apt_install() {
  why=$1
  shift
  command -v apt-get >/dev/null 2>&1 || { say "$why Please install it with this system's package manager."; return 1; }
  root=$(as_root) || { say "$why Please run: sudo apt-get install $*"; return 1; }
  say "installing $* with apt"
  log=$(mktemp)
  # shellcheck disable=SC2086  # $root is zero or two words
  if $root apt-get -qq update >"$log" 2>&1 &&
    $root env DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@" >>"$log" 2>&1; then
    rm -f "$log"
  else
    tail -n 15 "$log" >&2
    rm -f "$log"
    say "$why apt-get could not install $* (its last words are above)."
    return 1
  fi
}

# apt_install_idle WHY PACKAGE...: as apt_install, for packages that bring system services: the tests start programs of their own
# on free ports, so no service may be started. Names of the services are those of the packages.
apt_install_idle() {
  guard=/usr/sbin/policy-rc.d
  root=$(as_root) || root=none
  guarded=no
  if [ "$root" != none ] && [ ! -e "$guard" ]; then
    # shellcheck disable=SC2086
    printf '#!/bin/sh\nexit 101\n' | $root tee "$guard" >/dev/null && $root chmod 755 "$guard"
    guarded=yes
  fi
  installed=yes
  apt_install "$@" || installed=no
  [ "$guarded" = no ] || $root rm -f "$guard"
  [ "$installed" = yes ] || return 1
  shift
  if command -v systemctl >/dev/null 2>&1; then
    $root systemctl disable --now "$@" >/dev/null 2>&1 || say "services of $* stay enabled, since systemd does not run here"
  fi
}
