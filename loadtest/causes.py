"""Where injected delays are found: the table in docs/starvation.md.

Question: of the seconds that a rank waits since one stage was made slow, how many are told under that stage's cause?

Command: python loadtest/causes.py

Real processes: a store, a coordinator, workers whose engine, source or credit is made slow for chosen batches
(headrace.testing.slow_worker), links that are throttled (headrace.testing.proxy), workers that are killed, ranks whose
hand-over is slow. Ranks go in step, as with all_reduce. The wait is taken by each rank's own stopwatch around next().
Caveat: only waits of half the delay or more count as injected, and of each at most the delay: the rest is what a batch
costs anyway. On a busy machine that rest grows; the causes do not.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from headrace.core.starvation import CAUSES
from headrace.testing.causes import Found, cases, make_dataset, run_case

PAGE = Path(__file__).parent.parent / "docs" / "starvation.md"
BEGIN, END = "<!-- made by loadtest/causes.py -->", "<!-- end -->"


def main() -> None:
    """Run all cases and write the table into the page."""
    parts = list[str]()
    with tempfile.TemporaryDirectory(prefix="headrace-causes-") as directory:
        manifest = make_dataset(Path(directory) / "set")
        for number, case in enumerate(cases()):
            found = run_case(case, manifest, Path(directory) / f"case-{number}")
            parts.append(_table(case.name, found))
            print(parts[-1], flush=True)
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n" + "\n".join(parts) + f"\n{END}{after}")


def _table(name: str, found: list[Found]) -> str:
    head = "| made slow | injected, s | belongs to | found there | explained |" + "".join(f" {cause} |" for cause in CAUSES)
    lines = [f"**{name[0].upper() + name[1:]}**", "", head, "|---|---|---|---|---|" + "---|" * len(CAUSES)]
    for each in found:
        who = f", rank {each.phase.victims[0]} only" if each.phase.victims else ""
        parts = "".join(f" {each.causes[cause]:.2f} |" for cause in CAUSES)
        lines.append(
            f"| {each.phase.stage}{who} | {each.injected_s:.2f} | {each.cause} | {min(1.0, each.share):.0%} | "
            f"{each.explained:.1%} |{parts}"
        )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
