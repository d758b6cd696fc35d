#!/bin/sh
# test.sh [PYTEST ARGS]: all tests, or the ones asked for.
set -eu
cd "$(dirname "$0")/.."
exec .venv/bin/python -m pytest "$@"
