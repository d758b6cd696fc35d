#!/bin/sh
# The internal store. `start` runs the server; `ping`, its probes, ends with 0 if it answers PONG to the Secret's password.
# A password that was changed in the Secret is handed to the running server by the first probe that finds it: connections that
# are up stay, and nothing is restarted. It may hold anything: between here and the server it travels as \xHH, byte by byte, and
# never in a command line or a variable that others could read. Blanks around it don't count, as for the coordinators.
set -eu
used=/run/headrace/used

in_secret() {
  od -An -v -tx1 /etc/headrace/store/password | tr -d ' \n' |
    sed -E 's/^(20|09|0[a-d]|1[c-f])+//; s/(20|09|0[a-d]|1[c-f])+$//; s/../\\x&/g'
}

# Whether the server answers PONG to this password; while it reads a large file at its start, it does not.
answers() {
  printf 'AUTH "%s"\nPING\n' "$1" | valkey-cli 2>/dev/null | grep -q '^PONG'
}

password=$(in_secret)
case $1 in
start)
  [ -n "$password" ] || { echo "headrace: the Secret holds no password for the store: put one under the key that store.internal.passwordSecret names" >&2; exit 1; }
  umask 077
  printf 'requirepass "%s"\n' "$password" >/run/headrace/password.conf
  printf '%s' "$password" >"$used"
  exec valkey-server /etc/headrace/store.conf
  ;;
ping)
  before=$(cat "$used")
  [ -n "$password" ] || password=$before
  answers "$password" && exit 0
  [ "$password" != "$before" ] || exit 1
  printf 'AUTH "%s"\nCONFIG SET requirepass "%s"\n' "$before" "$password" | valkey-cli >/dev/null 2>&1 || true
  answers "$password" || exit 1
  printf '%s' "$password" >"$used"
  ;;
esac
