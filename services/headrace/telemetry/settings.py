"""How every service reads its settings: flags, then HEADRACE_* variables, and nothing unknown."""

from __future__ import annotations

import contextlib
import difflib
import inspect
import io
import os
import sys
from collections.abc import Iterator
from typing import TypeVar

from pydantic import SecretStr, ValidationError
from pydantic_settings import BaseSettings, CliApp, SettingsError

from headrace.core.errors import ConfigInvalid
from headrace.core.masking import mask_address

S = TypeVar("S", bound=BaseSettings)


def load(cls: type[S], argv: list[str], command: str) -> S:
    """Settings from command-line arguments and the environment. Raises ConfigInvalid for an unknown or impossible one.

    A misspelt flag is refused by the parser; a misspelt variable would be overlooked by it, so it is looked for here.
    """
    prefix = cls.model_config.get("env_prefix", "")
    known = {f"{prefix}{name}".upper() for name in cls.model_fields}
    for variable in sorted(os.environ):
        if variable.upper().startswith(prefix) and variable.upper() not in known:
            near = difflib.get_close_matches(variable.upper(), known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigInvalid(f"unknown variable {variable}{hint} (`{command} --help` lists all)", setting=variable)
    _refuse_secrets(cls, argv, prefix)
    cls.__doc__ = inspect.cleandoc(cls.__doc__ or "")  # `--help` shows it as it is
    try:
        with _masked_complaints():
            return CliApp.run(cls, cli_args=argv)
    except ValidationError as error:
        found = [
            (".".join(str(part) for part in item["loc"]), item["msg"].removeprefix("Value error, ")) for item in error.errors()
        ]
        lines = "; ".join(f"{where}: {what}" if where else what for where, what in found)
        raise ConfigInvalid(f"{lines} (see `{command} --help`)", setting=found[0][0]) from error
    except SettingsError as error:
        raise ConfigInvalid(f"{error} (see `{command} --help`)") from error


@contextlib.contextmanager
def _masked_complaints() -> Iterator[None]:
    """What the parser writes of an argument that it does not know may be an address with its password."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            yield
    finally:
        sys.stderr.write(mask_address(said.getvalue()))


def _refuse_secrets(cls: type[BaseSettings], argv: list[str], prefix: str) -> None:
    """A command line can be read by everyone on the machine, and is kept in histories."""
    for name, field in cls.model_fields.items():
        flag = f"--{name.replace('_', '-')}"
        if field.annotation is SecretStr and any(word.partition("=")[0] in (flag, f"--{name}") for word in argv):
            raise ConfigInvalid(
                f"{flag} must not be on a command line, where others can read it: use {flag}-file, or the variable "
                f"{prefix}{name.upper()}",
                setting=name,
            )
