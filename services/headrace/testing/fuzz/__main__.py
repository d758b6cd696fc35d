"""`python -m headrace.testing.fuzz`: fuzz for some minutes, or run one saved input again."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from headrace.testing.fuzz.runner import attempt, quiet, run
from headrace.testing.fuzz.targets import all_targets


def main() -> int:
    """Exit status 0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m headrace.testing.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0, help="how long, over all targets together")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"), help="repeats a run; printed")
    parser.add_argument("--target", action="append", help="only this one; may be given several times")
    parser.add_argument("--replay", type=Path, help="a saved input (hex), for one --target")
    parser.add_argument("--out", type=Path, default=Path("fuzz-out"), help="where failing inputs are saved")
    args = parser.parse_args()
    with quiet():
        targets = all_targets()
    unknown = set(args.target or ()) - set(targets)
    if unknown or (args.replay and len(args.target or ()) != 1):
        parser.error(f"--target must be of {', '.join(sorted(targets))}" + ("; --replay needs exactly one" * (not unknown)))
    chosen = {name: targets[name] for name in args.target or targets}
    if args.replay:
        finding = attempt(chosen[args.target[0]], bytes.fromhex(args.replay.read_text()), measure=True)
        print(finding.trace if finding else "nothing is wrong with this input any more")
        return int(finding is not None)
    print(f"seed {args.seed}: {len(chosen)} targets, {args.minutes:g} minutes")
    tally = run(chosen, args.seed, seconds=60 * args.minutes)
    for name, count in sorted(tally.executions.items()):
        print(f"{count:>9} {name}")
    print(f"{sum(tally.executions.values()):>9} executions, {len(tally.findings)} findings")
    for finding in tally.findings:
        path = finding.save(args.out)
        print(f"\n{finding.trace}\nreplay: python -m headrace.testing.fuzz --target {finding.target} --replay {path}")
    return int(bool(tally.findings))


if __name__ == "__main__":
    sys.exit(main())
