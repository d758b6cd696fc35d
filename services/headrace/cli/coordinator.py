"""`headrace coordinator`: a coordinator as a process. Its flags are its settings (headrace.coordinator.settings)."""

from __future__ import annotations

import os

import click


@click.command(context_settings={"ignore_unknown_options": True}, add_help_option=False)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def coordinator(arguments: tuple[str, ...]) -> None:
    """Run a coordinator; `--help` is answered by its settings."""
    # gRPC's C library would write lines of its own between our log lines; what matters of them our errors say.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from headrace.coordinator.app import main

    main(list(arguments))
