#!/bin/sh
# redis.sh: the tests run the store's contract against Redis as well as Valkey; this sees to it that redis-server is there.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
PATH=$PATH:/usr/sbin:/sbin

command -v redis-server >/dev/null 2>&1 && exit 0
apt_install_idle "The tests need redis-server." redis-server
