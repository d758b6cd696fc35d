"""Headrace and other loaders on the same photos, the same work and the same cores; writes results/peers.md and peers.png.

    make bench-peers                                               everything, from an empty clone
    python -m loadtest.peers                                       the same, where the `soak` extra is installed
    python -m loadtest.peers --images 2000 --rounds 1 --peers headrace_shm,dali --works train --out /tmp/try

Each peer gets an environment of its own, made once from loadtest/peers/envs/*.txt with pip, and photos are made once; both lie
below --cache (several GB). SPDL and FFCV need more than pip brings: apt-get install ffmpeg libopencv-dev libturbojpeg0-dev
pkg-config g++, or they are left out and the page says why.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

from headrace.core.errors import HeadraceError
from headrace.worker.engines.cpu import find_native
from loadtest.peers import accounting, dataset, environments, measure, pixels, plot
from loadtest.peers.contestants import BY_NAME, CONTESTANTS, OURS, WORKS, Contestant, takes_part
from loadtest.peers.driver import DriverFailed
from loadtest.peers.page import Run, page
from loadtest.peers.stages import stages, tcp_ms
from loadtest.peers.table import Trial

RESULTS = Path(__file__).parents[1] / "results"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace-peers"
STAGES_S = 20.0
WITH, WITHOUT = " Headrace with its native core.", " **Headrace without its native core**: it was not built here."
STAGE_PHOTOS, STAGE_ROUNDS = {"small": 256, "dense": 256, "large": 48}, 5


def main() -> None:
    """Run the benchmark."""
    args = _arguments()
    began_s = time.monotonic()
    accounting.adopt_orphans()
    settings = measure.Settings(args.cache, args.images, args.seconds, args.warm_s, args.threads or measure.threads_here())
    contestants = [BY_NAME[name] for name in args.peers.split(",")] if args.peers else list(CONTESTANTS)
    works = [work for work in WORKS if work.name in args.works.split(",")]
    photos = _photos(args, {work.photos for work in works})
    pythons, left_out = _pythons(args.cache, contestants)
    if args.prepare:
        print(f"made what is needed below {args.cache}; left out: {left_out or 'nothing'}")
        return
    load = os.getloadavg()[0]
    core = find_native()
    able = [contestant for contestant in contestants if contestant.env in pythons]
    places = [
        measure.Place(one, work, photos[work.photos], pythons[one.env])
        for work in works
        for one in able
        if takes_part(one, work)
    ]
    some = "small" if "small" in photos else min(photos)
    checked = [measure.Place(one, works[0], photos[some], pythons[one.env]) for one in able]
    apart, broken = _check(checked, settings)
    left_out |= broken
    places = [place for place in places if place.contestant.title not in broken]
    for made in photos.values():
        made.warm()
    trials, failed = _rounds(places, settings, args.rounds, began_s + 60 * args.minutes - STAGES_S)
    left_out |= failed
    trained = [work for work in works if work.kind == "train"]
    run = Run(
        trials=trials,
        machine=_machine(settings, load, time.monotonic() - began_s) + (WITH if core else WITHOUT),
        command=" ".join(["python -m loadtest.peers", *sys.argv[1:]]),
        left_out={title.replace("*", ""): why for title, why in left_out.items()},
        apart=apart,
        photos={name: _words(made) for name, made in photos.items()},
        stages={work.name: stages(photos[work.photos], STAGE_PHOTOS[work.photos], STAGE_ROUNDS) for work in trained if core},
        tcp_ms=tcp_ms(),
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "peers.md").write_text(page(run))
    plot.draw(trials, args.out / "peers.png")
    print(f"{time.monotonic() - began_s:.0f} s; wrote {args.out / 'peers.md'}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.peers", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=9, help="at most; works but the first take part in every other one")
    parser.add_argument("--minutes", type=float, default=19.0, help="no round begins that would end later than this")
    parser.add_argument("--images", type=int, default=12800, help="a measurement ends after so many, but not within a batch")
    parser.add_argument("--seconds", type=float, default=4.0, help="or after so long")
    parser.add_argument("--warm-s", type=float, default=1.0, help="what is not measured at its begin, besides three batches")
    parser.add_argument("--photos", type=int, default=4096, help="in the data set of 500x375, a multiple of 1024")
    parser.add_argument("--threads", type=int, default=0, help="workers or threads of each loader; 0: one a core")
    parser.add_argument("--peers", default="", help=f"names with commas between, of: {', '.join(BY_NAME)}; all if empty")
    parser.add_argument("--works", default=",".join(work.name for work in WORKS))
    parser.add_argument("--cache", type=Path, default=CACHE, help="for environments, photos and logs")
    parser.add_argument("--out", type=Path, default=RESULTS, help="where the page and the plot go")
    parser.add_argument("--prepare", action="store_true", help="make environments and photos, and end")
    return parser.parse_args()


def _photos(args: argparse.Namespace, wanted: set[str]) -> dict[str, dataset.Photos]:
    made = {}
    for name in sorted(wanted):
        kind = dataset.KINDS[name]
        count = int(args.photos * kind.share)
        made[name] = dataset.make(args.cache / "photos" / f"{name}-{count}", count, kind)
    return made


def _pythons(cache: Path, contestants: list[Contestant]) -> tuple[dict[str, Path], dict[str, str]]:
    """Python by environment, and the titles of those that have none, with the reason."""
    pythons, left_out = {OURS: measure.our_python()}, {}
    for env in dict.fromkeys(contestant.env for contestant in contestants if contestant.env != OURS):
        python, why = environments.ensure(cache, env)
        if python:
            pythons[env] = python
        else:
            left_out |= {one.title: _left_out(one, why) for one in contestants if one.env == env}
    return pythons, left_out


def _left_out(contestant: Contestant, why: str) -> str:
    return f"{why} (needs {contestant.needs})" if contestant.needs else why


def _check(
    places: list[measure.Place], settings: measure.Settings
) -> tuple[dict[tuple[str, str], pixels.Apart], dict[str, str]]:
    """Difference to Pillow by contestant and kind of work, and who could not make any pixels, with the reason."""
    apart, broken = {}, {}
    for place in places:
        name = place.contestant.name
        try:
            found = pixels.check(place, settings)
        except (DriverFailed, HeadraceError) as failed:
            broken[place.contestant.title] = _left_out(place.contestant, f"does not run: {failed}")
            print(f"{name} {broken[place.contestant.title]}", flush=True)
            continue
        apart |= {(name, kind): levels for kind, levels in found.items()}
        print(f"pixels of {name}, (mean, most) levels from Pillow's: {found}", flush=True)
    return apart, broken


def _rounds(
    places: list[measure.Place], settings: measure.Settings, rounds: int, end_s: float
) -> tuple[list[Trial], dict[str, str]]:
    """Interleaved: each round measures every loader once, beginning with another. Ends before a round that is too long.

    Also returns what failed, with the reason.
    """
    trials: list[Trial] = []
    failed: dict[str, str] = {}
    took_s: dict[str, float] = {}
    works = list(dict.fromkeys(place.work for place in places))
    for number in range(rounds):
        due = [work for work in works if number % work.every == 0]
        if time.monotonic() + sum(took_s.get(work.name, 0.0) for work in due) > end_s:
            due = due[:1]
        if time.monotonic() + sum(took_s.get(work.name, 0.0) for work in due) > end_s:
            break
        for work in due:
            began_s = time.monotonic()
            those = [place for place in places if place.work is work]
            first = 5 * number % len(those)
            for place in [*those[first:], *those[:first]]:
                name = f"{place.contestant.title}, {work.name}, round {number + 1}"
                try:
                    trials.append(measure.measure(place, settings, number))
                except (DriverFailed, HeadraceError) as error:
                    failed[name] = f"failed: {error}"
                    print(f"{name} failed: {error}", flush=True)
                else:
                    print(f"{name}: {_shown(trials[-1])}", flush=True)
            took_s[work.name] = time.monotonic() - began_s
    return trials, failed


def _shown(trial: Trial) -> str:
    numbers = f"{trial.rate:.0f} images/s, {trial.cpu_ms:.2f} CPU s per 1,000, {trial.peak_bytes / 1e6:.0f} MB"
    return f"{numbers}, first after {trial.first_s:.1f} s"


def _words(photos: dataset.Photos) -> str:
    return f"{photos.count} photos, {photos.mean_bytes / 1e3:.0f} kB each on average; 3% gray, 5% progressive."


def _machine(settings: measure.Settings, load: float, seconds: float) -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    cpus = f"{measure.threads_here()} CPUs ({names[0] if names else platform.machine()})"
    limit = f"{settings.seconds:g} s or {settings.images} images"
    return (
        f"{cpus}, {settings.threads} workers or threads each, Python {platform.python_version()}, {datetime.now(UTC).date()}. "
        f"Interleaved rounds of up to {limit} each, {seconds / 60:.0f} minutes in all. Load average before: {load:.1f}."
    )


if __name__ == "__main__":
    main()
