#!/bin/sh
# chromium.sh: sees to it that a Chromium is there: tests open Headrace's pages in it. Where it can't be installed it says so, and
# those tests are skipped with that reason.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh

for browser in chromium chromium-browser google-chrome; do
  command -v "$browser" >/dev/null 2>&1 && exit 0
done
apt_install "Tests of pages need chromium." chromium || say "without it these tests are skipped"
