#!/bin/sh
# setup.sh EXTRAS: makes .venv and installs Headrace with these extras of pyproject.toml, if that was not done since it changed.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh
extras=$1

find_python() {
  for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11}; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$candidate"
      return 0
    fi
  done
  return 1
}

make_venv() {
  python=$(find_python) || die "no Python >= 3.11 found; install one, or run make with PYTHON=/path/to/python3"
  if ! "$python" -c 'import ensurepip' >/dev/null 2>&1; then
    # Debian ships the module apart, named after the version, and python3-venv stands for the default one.
    package=python3-venv
    [ "$python" = python3 ] || package=$(basename "$python")-venv
    apt_install "$python cannot make a virtual environment." "$package" || exit 1
  fi
  say "making .venv with $("$python" --version 2>&1)"
  rm -rf .venv
  "$python" -m venv .venv || die "python -m venv failed, see above"
  pwd >.venv/.headrace-home
}

# A .venv that was moved, or whose Python was removed or upgraded, does not run: make it anew.
home=$(cat .venv/.headrace-home 2>/dev/null || pwd)
[ "$home" = "$(pwd)" ] && .venv/bin/python -m pip --version >/dev/null 2>&1 || make_venv

stamp=.venv/.headrace-$extras
wanted=$(cat pyproject.toml hatch_build.py native/*.[ch] | cksum)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then
  exit 0
fi
# The engine's native core is compiled by the install. Without a compiler or headers the engine does with libraries, slower.
compiler=$(command -v cc || command -v gcc || command -v clang || true)
if [ -z "$compiler" ] || ! printf '#include <stdio.h>\n#include <jpeglib.h>\n' | "$compiler" -E - >/dev/null 2>&1; then
  apt_install "The native core of the cpu engine needs a C compiler and libjpeg's headers." gcc libc6-dev libjpeg-dev ||
    say "going on without the native core: the cpu engine will use libraries, at about two thirds of the speed"
fi
case $extras in
  demo | soak) say "installing Headrace and what the $extras needs into .venv (once, about a minute)" ;;
  *) say "installing Headrace and what its tests need into .venv (once, some minutes: PyTorch and JAX are among it)" ;;
esac
.venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --editable ".[$extras]" ||
  die "pip could not install the packages (its last words are above); if it could not reach PyPI, set PIP_INDEX_URL or PIP_PROXY and run make again"
printf '%s' "$wanted" >"$stamp"
