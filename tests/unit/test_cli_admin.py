"""What commands say of an admin address that does not answer them: TLS, tokens, and addresses that are none."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import click
import pytest
from click.testing import CliRunner

from headrace.cli.main import COMMANDS, cli
from headrace.testing.certificates import Authority, mount
from headrace.wire.secret import Secret
from headrace.wire.tls import ServerTls
from tests.unit.test_cli_quarantine import Coordinator

TOKEN, OTHER = "0123456789-admin-token", "0123456789-other-token"


class Guarded(Coordinator):
    token = Secret("admin_token", text=TOKEN)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A service's certificate and its CA, another CA, and tokens."""
    directory = tmp_path_factory.mktemp("files")
    mount(directory / "fleet", Authority().issue())
    (directory / "others.crt").write_bytes(Authority("others").pem)
    (directory / "right").write_text(TOKEN)
    (directory / "wrong").write_text(OTHER)
    return directory


@pytest.fixture(scope="module")
def addresses(files: Path) -> Iterator[dict[str, str]]:
    """Admin APIs: without TLS, with it, and with demanded certificates; and what speaks no HTTP."""
    tls = mount(files / "fleet", {name: (files / "fleet" / name).read_bytes() for name in ("tls.crt", "tls.key", "ca.crt")})
    running = {
        "plain": Guarded(),
        "tls": Guarded(tls=ServerTls(tls).http_context()),
        "mutual": Guarded(tls=ServerTls(tls, require_client_http=True).http_context()),
    }
    yield {name: one.admin for name, one in running.items()}
    for one in running.values():
        one.close()


CA, OTHERS, CERT = (
    ("HEADRACE_TLS_CA", "fleet/ca.crt"),
    ("HEADRACE_TLS_CA", "others.crt"),
    ("HEADRACE_TLS_CERT", "fleet/tls.crt"),
)
KEY = ("HEADRACE_TLS_KEY", "fleet/tls.key")
CASES: list[tuple[str, str, list[tuple[str, str]], list[str]]] = [
    ("tls", "", [], ["speaks TLS", "set HEADRACE_TLS_CA"]),
    ("tls", "http://", [CA], ["speaks TLS", "write https://"]),
    ("tls", "https://", [], ["is not one that this machine trusts", "set HEADRACE_TLS_CA"]),
    ("tls", "", [OTHERS], ["not signed by", "others.crt", "HEADRACE_"]),
    ("plain", "", [CA], ["does not speak TLS", "leave tls_ca away", "HEADRACE_"]),
    ("mutual", "", [CA], ["demands a client certificate", "tls_cert", "HEADRACE_"]),
    ("tls", "", [("HEADRACE_TLS_CA", "nowhere")], ["HEADRACE_TLS_CA: ", "nowhere cannot be used", "No such file"]),
    ("tls", "", [("HEADRACE_TLS_CA", "fleet")], ["HEADRACE_TLS_CA: ", "fleet cannot be used", "directory"]),
    ("tls", "", [("HEADRACE_TLS_CA", "right")], ["HEADRACE_TLS_CA: ", "no PEM certificate"]),
    ("tls", "", [CA, KEY, ("HEADRACE_TLS_CERT", "nowhere")], ["HEADRACE_TLS_CERT: ", "nowhere cannot be used"]),
    ("tls", "", [CA, CERT, ("HEADRACE_TLS_KEY", "nowhere")], ["HEADRACE_TLS_KEY: ", "nowhere cannot be used"]),
    ("tls", "", [CERT], ["tls_cert and tls_key go together", "HEADRACE_"]),
    ("tls", "", [CA], ["shows no token", "HEADRACE_ADMIN_TOKEN_FILE"]),
    ("plain", "", [], ["shows no token", "HEADRACE_ADMIN_TOKEN_FILE"]),
    (
        "plain",
        "",
        [("HEADRACE_ADMIN_TOKEN_FILE", "wrong")],
        ["does not know the token in the file", "(HEADRACE_ADMIN_TOKEN_FILE)"],
    ),
    ("plain", "", [("HEADRACE_ADMIN_TOKEN", OTHER)], ["does not know the token in HEADRACE_ADMIN_TOKEN:"]),
    ("plain", "", [("HEADRACE_ADMIN_TOKEN_FILE", "nowhere")], ["nowhere cannot be read", "HEADRACE_"]),
]


@pytest.mark.parametrize("command", [["status"], ["status", "job"], ["quarantine", "job"]], ids=" ".join)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[1]}{case[0]}-{case[3][0]}")
def test_what_is_wrong_with_tls_or_the_token_is_named(
    case: tuple[str, str, list[tuple[str, str]], list[str]], command: list[str], files: Path, addresses: dict[str, str]
) -> None:
    server, scheme, settings, said = case
    env = {name: value if name == "HEADRACE_ADMIN_TOKEN" else str(files / value) for name, value in settings}
    result = CliRunner(env=env).invoke(cli, [*command, "--admin", f"{scheme}{addresses[server]}"])
    told = result.stderr  # the server of these tests logs into the rest
    assert result.exit_code == 1 and len(told.splitlines()) == 1, result.output
    assert all(words in told for words in said), told
    assert "no admin API answers" not in told and OTHER not in result.output


def test_with_what_the_address_wants_the_commands_are_answered(files: Path, addresses: dict[str, str]) -> None:
    token = {"HEADRACE_ADMIN_TOKEN_FILE": str(files / "right")}
    tls = {name: str(files / value) for name, value in (CA, CERT, KEY)}
    for server, env in (("plain", token), ("tls", token | {CA[0]: tls[CA[0]]}), ("mutual", token | tls)):
        result = CliRunner(env=env | {"HEADRACE_ADMIN": addresses[server]}).invoke(cli, ["status"])
        assert result.exit_code == 0 and "No job is open" in result.output, result.output


@pytest.mark.parametrize(
    "address", ["a:b", "127.0.0.1:0", "127.0.0.1:99999", "http://", ":7301", "ftp://a:1", "a b:1", "[::1:1"]
)
def test_an_address_that_is_none_is_refused_in_a_line(address: str) -> None:
    result = CliRunner().invoke(cli, ["status", "--admin", address])
    assert result.exit_code == 1 and "--admin must be HOST:PORT" in result.output and len(result.output.splitlines()) == 1


@pytest.mark.parametrize("answer", [b"\x00\x00\x12\x04\x00\x1b[31m", b"", b"HTTP/1.1 200 OK\r\n\r\nno JSON"], ids=repr)
def test_another_server_is_told_in_a_line(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            for _ in range(2):  # the second is asked whether it speaks TLS
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = Thread(target=serve)
        thread.start()
        result = CliRunner().invoke(cli, ["status", "--admin", f"127.0.0.1:{server.getsockname()[1]}"])
        thread.join(10)
    assert result.exit_code == 1 and "no admin API answers" in result.output, result.output
    assert len(result.output.splitlines()) == 1 and "\x1b" not in result.output


@pytest.mark.parametrize("name", sorted(COMMANDS.keys() - {"worker", "coordinator"}))
def test_help_names_every_variable_that_a_command_reads(name: str) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    shown = "".join(CliRunner(env={"COLUMNS": "400"}).invoke(cli, [name, "--help"]).output.split())
    for option in command.params:
        assert not isinstance(option.envvar, str) or option.envvar in shown
    if any(option.name == "admin" for option in command.params):
        for variable in ("HEADRACE_ADMIN", "HEADRACE_TLS_CA", "HEADRACE_TLS_CERT", "HEADRACE_TLS_KEY"):
            assert variable in shown
        assert "HEADRACE_ADMIN_TOKEN_FILE" in shown
