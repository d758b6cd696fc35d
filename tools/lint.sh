#!/bin/sh
# lint.sh: every check that needs no running service. Stops at the first that fails.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
bin=$(pwd)/.venv/bin

say "ruff"
"$bin/ruff" check --quiet .
"$bin/ruff" format --check --quiet . || die "some files are not in the house style; run: make format"
say "types of the GPU libraries"
"$bin/python" tools/typings.py --check || die "run: $bin/python tools/typings.py"
say "mypy --strict"
"$bin/mypy" --no-error-summary
say "directions of imports"
"$bin/lint-imports" --no-logo --no-cache >.venv/lint-imports.log 2>&1 || { cat .venv/lint-imports.log >&2; die "an import goes the wrong way"; }
say "protocol files"
(cd proto && "$bin/buf" lint)
