"""`headrace worker`: a worker as a process. Its flags are its settings (headrace.worker.settings)."""

from __future__ import annotations

import os

import click


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def worker(arguments: tuple[str, ...]) -> None:
    """Run a worker; `--help` is answered by its settings."""
    # gRPC's C library would write lines of its own between our log lines; what matters of them our errors say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from headrace.worker.app import main

    main(list(arguments))
