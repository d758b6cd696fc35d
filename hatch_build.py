"""Builds the native core of the `cpu` engine (native/*.c) into the package, for wheels and editable installs.

A plain shared library with a C interface: no Python header, so one wheel a platform serves every Python, and no library to link
with, since libjpeg-turbo is taken at run time from Pillow. It needs a C compiler and libjpeg's headers. Where one is missing
the install goes on without it and the engine uses libraries instead. HEADRACE_NATIVE=require makes that an error, =off builds
nothing.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

# The name ends as no Python extension does: whoever walks the package must not take it for a module.
LIBRARY = "services/headrace/worker/engines/libheadrace_native.so.1"
FLAGS = ["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O3", "-Wall", "-fPIC", "-shared", "-fvisibility=hidden"]
# Contraction would let a compiler round the resize's weights otherwise than IEEE doubles do.
FLAGS.append("-ffp-contract=off")
ON_DEBIAN = "on Debian: apt-get install gcc libc6-dev libjpeg-dev"


class NativeCoreHook(BuildHookInterface[Any]):
    """Hatchling's hook of a wheel."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is put together; an editable install finds the library in the tree."""
        wanted = os.environ.get("HEADRACE_NATIVE", "auto")
        library = Path(self.root, LIBRARY)
        # An old one would be of other sources.
        library.unlink(missing_ok=True)
        trouble = "HEADRACE_NATIVE=off" if wanted == "off" else compile_into(library, Path(self.root, "native"))
        if not trouble:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data.update(pure_python=False, tag=f"py3-none-{platform}")
            build_data["artifacts"].append(LIBRARY)
        elif wanted == "require":
            raise RuntimeError(f"the native core could not be built: {trouble}")
        else:
            self.app.display_warning(f"headrace: no native core, the cpu engine will use libraries: {trouble}")


def compile_into(library: Path, sources: Path) -> str:
    """Compile; returns what went wrong, empty if nothing did."""
    found = [path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))]
    compiler = shlex.split(os.environ.get("CC", "")) or found[:1]
    if not compiler:
        return f"no C compiler found; {ON_DEBIAN}"
    flags = [*shlex.split(os.environ.get("CPPFLAGS", "")), *FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    # Under another name first: a worker that runs has the old one mapped, and a build that fails leaves none.
    fresh = library.with_suffix(".new")
    try:
        command = [*compiler, *flags, "-o", str(fresh), *map(str, sorted(sources.glob("*.c")))]
        run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)  # noqa: S603 - the builder's own
        if run.returncode:
            said = run.stderr.strip().splitlines() or ["no message"]
            return f"{next((line for line in said if 'error' in line), said[-1])}; {ON_DEBIAN}"
        fresh.replace(library)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    finally:
        fresh.unlink(missing_ok=True)
    return ""
