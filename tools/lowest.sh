#!/bin/sh
# lowest.sh [PYTEST ARGS]: some of the tests with the oldest version of each library that pyproject.toml admits, in .venv-lowest.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
venv=.venv-lowest
wanted=$(.venv/bin/python tools/lowest.py)
if [ "$(cat $venv/.wanted 2>/dev/null)" != "$wanted" ]; then
  say "installing the oldest libraries that pyproject.toml admits into $venv (once, half a minute)"
  rm -rf $venv
  .venv/bin/python -m venv $venv
  printf '%s\n' "$wanted" >$venv/requirements.txt
  $venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check -r $venv/requirements.txt ||
    die "pip could not install these versions together: raise one in pyproject.toml"
  $venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-deps --editable . || die "pip could not install Headrace"
  printf '%s' "$wanted" >$venv/.wanted
fi
# What differs between versions of libraries: numbers, calls, the store's client, settings, the command line, what is logged.
if [ $# -eq 0 ]; then
  set -- -q -n 3 --dist loadfile -p no:cacheprovider tests/contract/test_engines.py tests/contract/test_decode_contract.py \
    tests/contract/test_store*.py tests/contract/test_rank_servers*.py tests/unit/core tests/unit/telemetry tests/unit/datasets \
    tests/unit/test_cli*.py tests/unit/test_durations.py tests/unit/test_logging.py tests/integration/test_coordinator.py
fi
say "some of the tests with the oldest libraries that pyproject.toml admits"
exec $venv/bin/python -m pytest "$@"
