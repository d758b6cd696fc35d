#!/bin/sh
# redis.sh: the tests run the store's contract against Redis as well as Valkey; this sees to it that redis-server is there.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
PATH=$PATH:/usr/sbin:/sbin

command -v redis-server >/dev/null 2>&1 && exit 0

# The package would start a system service. The tests start a server of their own on a free port, so it must not.
guard=/usr/sbin/policy-rc.d
root=$(as_root) || root=none
if [ "$root" != none ] && [ ! -e "$guard" ]; then
  # shellcheck disable=SC2086
  printf '#!/bin/sh\nexit 101\n' | $root tee "$guard" >/dev/null && $root chmod 755 "$guard"
  trap '$root rm -f "$guard"' EXIT
fi
apt_install "The tests need redis-server." redis-server || exit 1
if [ "$root" != none ] && command -v systemctl >/dev/null 2>&1; then
  $root systemctl disable --now redis-server >/dev/null 2>&1 || say "redis-server stays enabled as a service, since systemd does not run here"
fi
