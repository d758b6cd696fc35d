#!/bin/sh
# run.sh: prove the GPU path on a machine with one NVIDIA GPU and no network, in under 8 minutes; docs/gpu.md.
#   --wheels DIR   where `wheels.py fetch` put the wheels (default: tests/gpu/wheels); pieces may lie in folders of it
#   --out DIR      for gpu_report.json, gpu_report.md, logs and the environment (default: gpu-out)
#   --system       beside the machine's own Python packages, not in an environment without them: fewer wheels are needed
#   --here         use the Python at hand (PYTHON, else .venv, else python3) with what it has; no wheels
#   --quick        the smallest sizes, to try the script
# Exit status: 0 all ran and passed; 1 something failed; 2 nothing failed, but there is no GPU; 3 there is one, but not all ran.
set -eu
started=$(date +%s)
root=$(cd "$(dirname "$0")/../.." && pwd)
wheels=$root/tests/gpu/wheels out=gpu-out here="" system="" quick=""
while [ $# -gt 0 ]; do
  case $1 in
    --wheels) wheels=$2; shift ;;
    --out) out=$2; shift ;;
    --here) here=1 ;;
    --system) system=1 ;;
    --quick) quick=--quick ;;
    *) sed -n '2,9p' "$0" >&2; exit 64 ;;
  esac
  shift
done
mkdir -p "$out"
out=$(cd "$out" && pwd)
export PYTHONUNBUFFERED=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore

python=${PYTHON:-}
if [ -z "$python" ] && [ -n "$here" ] && [ -x "$root/.venv/bin/python" ]; then python=$root/.venv/bin/python; fi
for candidate in "$python" python3.12 python3 python3.13 python3.11; do
  if [ -n "$candidate" ] && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
    python=$candidate
    break
  fi
  python=""
done
[ -n "$python" ] || { echo "run.sh: no Python of 3.11 or later is here; set PYTHON" >&2; exit 64; }

lacking=$out/lacking.json
echo '{}' >"$lacking"
if [ -z "$here" ]; then
  "$python" "$root/tests/gpu/wheels.py" join "$wheels" --into "$out/wheels" >"$out/joined.json"
  if [ -n "$system" ]; then
    site=$out/site
    rm -rf "$site"
    "$python" "$root/tests/gpu/install.py" "$out/joined.json" "$out/wheels" "$lacking" "$site"
    PYTHONPATH=$site${PYTHONPATH:+:$PYTHONPATH}
  else
    "$python" -m venv --clear "$out/venv" >"$out/venv.log" 2>&1 \
      || { cat "$out/venv.log" >&2; echo "run.sh: no venv can be made: take --system, or apt-get install python3-venv" >&2; exit 64; }
    python=$out/venv/bin/python
    # A set that did not come whole is left out; the report says so.
    "$python" "$root/tests/gpu/install.py" "$out/joined.json" "$out/wheels" "$lacking"
  fi
  if [ -f "$out/wheels/photos.npz" ]; then HEADRACE_GPU_PHOTOS=$out/wheels/photos.npz; export HEADRACE_GPU_PHOTOS; fi
  core=libheadrace_native.so.1 engines=$root/services/headrace/worker/engines
  if [ -f "$out/wheels/$core" ] && [ ! -f "$engines/$core" ]; then cp "$out/wheels/$core" "$engines/$core"; fi
fi
cd "$root"
PYTHONPATH="$root/services:$root${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH
exec "$python" -m tests.gpu.proof --out "$out" --lacking "$lacking" --started "$started" $quick
