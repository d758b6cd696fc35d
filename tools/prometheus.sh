#!/bin/sh
# prometheus.sh: sees to it that prometheus, promtool and an Alertmanager are there: the tests of rules and dashboards scrape a real
# fleet with them, and `headrace demo --prometheus` wants prometheus. Where they can't be installed it says so, and those tests are
# skipped with that reason.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh

command -v promtool >/dev/null 2>&1 && command -v prometheus >/dev/null 2>&1 && command -v prometheus-alertmanager >/dev/null 2>&1 && exit 0
apt_install_idle "Tests of rules and dashboards need prometheus and prometheus-alertmanager." prometheus prometheus-alertmanager ||
  say "without them these tests are skipped"
