"""`python -m headrace.testing.bound PROGRAM ARGUMENTS...`: becomes a program that ends with the process that started it."""

from __future__ import annotations

import os
import sys

from headrace.telemetry.parent import exit_with_parent


def main() -> None:
    """Run the program of the arguments in this process's place."""
    exit_with_parent()
    os.execvp(sys.argv[1], sys.argv[1:])  # noqa: S606 - no shell, and the tests' own words


if __name__ == "__main__":
    main()
