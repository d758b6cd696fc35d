#!/bin/sh
# test.sh [PYTEST ARGS]: all tests, or the ones asked for.
set -eu
cd "$(dirname "$0")/.."
# Three files at a time, also on two cores: the tests of real processes mostly wait. A file's tests stay together, as they
# share fixtures.
if [ $# -eq 0 ]; then
  set -- -n 3 --dist loadfile --durations 10
fi
exec .venv/bin/python -m pytest "$@"
