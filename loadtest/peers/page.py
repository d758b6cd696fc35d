"""The result page. Pure: from measurements to Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.peers.contestants import CONTESTANTS, WORKS, Contestant, Work
from loadtest.peers.stages import COLOUR, ENTROPY, PYTHON, RESIZE
from loadtest.peers.table import NUMBERS, Spread, Trial, markdown, spread, target_rows

# Mean difference to Pillow's antialiased pixels, in levels of 255, above which a row is marked, whatever its loader says.
FAR = 0.5


@dataclass(frozen=True, slots=True)
class Run:
    """Everything that a page says.

    machine: one line. command: that repeats it. left_out: title -> why. apart: (contestant, kind of work) -> (mean, most)
    levels from Pillow. photos: data set -> what it holds. stages: work -> stage -> CPU ms an image.
    tcp_ms: CPU of an image's bytes through raw TCP.
    """

    trials: Sequence[Trial]
    machine: str
    command: str
    left_out: Mapping[str, str]
    apart: Mapping[tuple[str, str], tuple[float, int]]
    photos: Mapping[str, str]
    stages: Mapping[str, Mapping[str, float]]
    tcp_ms: float


def page(run: Run) -> str:
    """The whole page."""
    parts = [
        f"# Headrace and other loaders\n\n{QUESTION}\n\n**Command.** `{run.command}` (all of it: `make bench-peers`)\n",
        f"**Where.** {run.machine}\n\n![images a second and CPU time](peers.png)\n",
    ]
    for work in WORKS:
        if any(trial.work == work.name for trial in run.trials):
            rounds = len({trial.number for trial in run.trials if trial.work == work.name})
            parts.append(f"## {work.title}\n\n{run.photos[work.photos]} Rounds: {rounds}.\n")
            parts += [_loaders(run, work), _targets(run, work)]
    parts += [_stages(run), _processes(run), _missing(run), CAVEATS]
    return "\n".join(part for part in parts if part)


def _loaders(run: Run, work: Work) -> str:
    rows = []
    for contestant in CONTESTANTS:
        found = [spread(run.trials, contestant.name, work.name, number) for number in NUMBERS]
        rate, cpu, peak, first = found
        if rate and cpu and peak and first:
            numbers = [rate.text(0), cpu.text(2), f"{peak.most:.0f}", f"{first.median:.1f}"]
            rows.append((rate.median, [contestant.title, *numbers, *_pixels(run, contestant, work)]))
    rows.sort(key=lambda row: -row[0])
    title = [
        "loader",
        "images/s: median (range)",
        "CPU s per 1,000 images: median (range)",
        "peak memory, MB",
        "first batch, s",
        "levels from Pillow: mean, most",
        "remarks",
    ]
    return markdown(title, [row for _, row in rows])


def _pixels(run: Run, contestant: Contestant, work: Work) -> list[str]:
    """Difference to Pillow, and the remark with the mark of a resize that does less."""
    apart = run.apart.get((contestant.name, work.kind))
    shown = f"{apart[0]:.2f}, {apart[1]}" if apart else "-"
    if not contestant.antialias:
        mark = "**no antialias: less work, other pixels**; "
    elif apart and apart[0] > FAR and work.kind == "train":  # of evaluation the rounding of places counts for more
        mark = "**other pixels**; "
    else:
        mark = ""
    return [shown, mark + contestant.remark]


def _targets(run: Run, work: Work) -> str:
    rows = target_rows(run.trials, work.name)
    if work.name != "train":
        # The targets are for the photos of 500x375; here the ratios inform.
        rows = [[title, found] for title, _, found, _ in rows]
        return markdown(["ratio", "median of the rounds (range)"], rows)
    return markdown(["ratio", "target", "median of the rounds (range)", ""], rows)


def _stages(run: Run) -> str:
    if not run.stages:
        return ""
    rows = []
    for work in WORKS:
        if work.name in run.stages:
            ms = run.stages[work.name]
            whole = sum(ms.values())
            shares = [f"{ms[stage]:.3f} ({100 * ms[stage] / whole:.0f}%)" for stage in (ENTROPY, COLOUR, RESIZE, PYTHON)]
            rows.append([work.name, *shares, f"{whole:.3f}", f"{1e3 / ms[ENTROPY]:.0f}"])
    title = ["work", ENTROPY, COLOUR, RESIZE, PYTHON, "all", "floor: images/s a core by entropy decode alone"]
    return f"## Where the engine's time goes\n\n{STAGES}\n\n" + markdown(title, rows)


def _processes(run: Run) -> str:
    """CPU by process of the fleet, an image, and how many cores that was."""
    rows = []
    roles = ("worker", "trainer", "fetcher", "coordinator", "store")
    for work in WORKS:
        engine = spread(run.trials, "headrace_engine", work.name, "cpu")
        for name in ("headrace_shm", "headrace_grpc"):
            trials = [trial for trial in run.trials if (trial.contestant, trial.work) == (name, work.name)]
            if not trials:
                continue
            cells = []
            for role in roles:
                values = [1e3 * trial.roles[role] / trial.images for trial in trials if role in trial.roles]
                cells.append(f"{Spread.of(values).median:.3f}" if values else "-")
            whole = Spread.of(trial.cpu_ms for trial in trials).median
            cores = Spread.of(trial.cpu_s / trial.seconds for trial in trials).median
            shown = [f"{whole:.3f}", f"{engine.median:.3f}" if engine else "-", f"{cores:.2f}"]
            rows.append([work.name, name.removeprefix("headrace_"), *cells, *shown])
    if not rows:
        return ""
    title = ["work", "transport", *roles, "all", "engine alone", "cores in use"]
    return f"## Where the fleet's time goes\n\n{PROCESSES.format(tcp=run.tcp_ms)}\n\n" + markdown(title, rows)


def _missing(run: Run) -> str:
    if not run.left_out:
        return ""
    rows = [[title, why] for title, why in run.left_out.items()]
    return "## Left out\n\n" + markdown(["loader", "why"], rows)


QUESTION = """**Question.** How many images a second, and at what CPU cost, do loaders hand to a training process, on the same
photos, the same work and the same cores? Each delivers uint8 NHWC batches (of 256, if nothing else is said) to a process that
reads every byte."""

STAGES = """CPU milliseconds an image of one thread, on these photos (more in [native_core.md](native_core.md)). The entropy
decode is libjpeg-turbo's and has to be done for all of a photo, whatever is cut out of it: it is the floor of any loader
that reads JPEG."""

PROCESSES = """CPU milliseconds an image by process, medians. `worker` reads the tars, plans, runs the engine and seals slots;
over gRPC it sends the bytes, too. `trainer` is the consuming process. `fetcher` receives gRPC into the trainer's slab.
`coordinator` and `store` are the control. What `worker` takes beyond `engine alone` (which reads files, and every byte of its
batches) is planning, reading ranges and handing over. Raw TCP between two threads takes {tcp:.3f} here for the bytes of an
image, sent and received: what gRPC costs beyond shm cannot be less. The rest of that difference are the copies that grpcio
makes of each byte at both ends, one more to build a message and one to fill the slot; what was tried against them is in
[dataplane.md](../../docs/dataplane.md#costs). Fewer `cores in use` than there are: somebody waits."""

CAVEATS = """## Caveats

- Photos are crops of ten real ones, with brightness, place, size and quality drawn from a seed; those of 1600x1200
  are four crops side by side. All lie in the page cache: no disk, no network is measured.
- Every loader is written as its documentation does it, with as many workers or threads as there are cores, and measured in a
  stream without end, between two of its batches after a warm-up, so that no buffer is filled or drained for free.
- CPU is user + system time of all processes that were started, the consumer's and those that ended included. Memory is the
  proportional set size of all (shared pages once), sampled before and after the clock runs.
- Rounds are interleaved: each measures every loader once, beginning with another one. Ratios are taken within a round.
- ImageNet's photos have some 110 kB. The larger the files, the more of everyone's time is the entropy decode, which all have
  alike, and the nearer all ratios are to 1.
- Each loader draws its boxes itself, by torchvision's rules or its own of the same name. Pixels are compared on given cuts, on
  the smaller photos. FFCV's comparison is of its resize alone, since its file holds photos that were encoded anew. Of
  evaluation, DALI and FFCV place the crop by rules of their own, half a pixel or more beside torchvision's.
- Loaders in the consumer's process (DALI, tf.data, SPDL, FFCV, the engine alone) hand nothing over between processes; a
  training loop would share their Python.
- tf.data cuts while it decodes, too: it ends behind the crop's last row and scales without antialias, which saves most where
  photos are large. Headrace goes on to the end, and scales as Pillow does.
- Headrace looks for damage below the crop and refuses such photos, sends labels and keys with each batch, and can make every
  batch again bit for bit. Most others do none of that."""
