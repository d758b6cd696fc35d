"""What holds for every setting of a kind, of both services: finite numbers, addresses that can be."""

from __future__ import annotations

import inspect

import pytest
from pydantic_settings import BaseSettings

from headrace.cli import doctor, plan
from headrace.cli.checks.limits import Load
from headrace.coordinator.settings import CoordinatorSettings
from headrace.core.errors import ConfigInvalid
from headrace.core.step_plan import Counts
from headrace.telemetry.settings import load
from headrace.worker.settings import WorkerSettings

SERVICES: tuple[type[BaseSettings], ...] = (CoordinatorSettings, WorkerSettings)
FLOATS = [(cls, name) for cls in SERVICES for name, field in cls.model_fields.items() if field.annotation is float]
ADDRESSES = [
    (cls, name) for cls in SERVICES for name, field in cls.model_fields.items() if "host:port" in (field.description or "")
]


def named(value: object) -> str:
    return value.__name__ if isinstance(value, type) else str(value)


def refusal(cls: type[BaseSettings], name: str, value: str) -> ConfigInvalid:
    with pytest.raises(ConfigInvalid) as caught:
        load(cls, [f"--{name.replace('_', '-')}={value}"], "headrace service")
    assert caught.value.setting == name and "Value error" not in caught.value.message
    return caught.value


def test_there_are_settings_to_judge() -> None:
    assert len(FLOATS) >= 10
    assert {name for _, name in ADDRESSES} == {
        "grpc_address", "admin_address", "metrics_address", "advertise", "coordinator", "store",
    }  # fmt: skip


@pytest.mark.parametrize(("cls", "name"), FLOATS, ids=named)
@pytest.mark.parametrize("value", ["inf", "-inf", "nan", "Infinity", "1e999"])
def test_numbers_are_finite(cls: type[BaseSettings], name: str, value: str) -> None:
    """JSON has no others, nor has a clock."""
    assert "finite" in refusal(cls, name, value).message


@pytest.mark.parametrize(("cls", "name"), ADDRESSES, ids=named)
@pytest.mark.parametrize("address", ["foo:99999", ":99999", "foo:x", "foo:-1", "foo:"])
def test_an_address_that_cannot_be_is_refused_with_an_example(cls: type[BaseSettings], name: str, address: str) -> None:
    told = refusal(cls, name, f"redis://{address}" if name == "store" else address).message
    assert "such as" in told or "HOST:PORT with a port of 1 to 65535" in told


@pytest.mark.parametrize(
    "address", ["foo", "foo:0", ":7310", "::1:7310", "[foo]:7310", "fo o:7310", "http://foo:7310", "foo:7310/"]
)
def test_what_others_shall_connect_to_is_a_host_and_a_port(address: str) -> None:
    assert "such as" in refusal(WorkerSettings, "advertise", address).message
    assert "such as" in refusal(WorkerSettings, "coordinator", f"127.0.0.1:7300,{address}").message


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.5:7310",
        "[fd00::5]:7310",
        "[fe80::1%eth0]:1",
        "w-0.workers.ns.svc.cluster.local.:65535",
        "my_host:7310",
        "käse.example:1",
    ],
)
def test_addresses_that_can_be_are_taken(address: str) -> None:
    found = load(WorkerSettings, ["--advertise", address, "--coordinator", f"{address}, b:1"], "headrace worker")
    assert (found.advertise, found.coordinator) == (address, f"{address}, b:1")


@pytest.mark.parametrize("store", ["redis://h:0/0", "redis://u:p@h:99999/0", "sentinel://a:1,b:99999/s", "sentinel://a:0/s"])
def test_a_stores_hosts_are_looked_at(store: str) -> None:
    refusal(CoordinatorSettings, "store", store)


def test_no_piece_of_a_password_that_was_not_escaped_is_told() -> None:
    for store in ("redis://:se/cret@h:6379/0", "redis://:se#cret@h:6379/0", "sentinel://:se/cret@h:6379/s"):
        told = str(refusal(CoordinatorSettings, "store", store))
        assert "cret" not in told and ":se" not in told and "%40" in told


@pytest.mark.parametrize(
    "store",
    ["memory://", "redis://h", "redis:///0", "rediss://u:p%40@[::1]:6380/1", "unix:///run/r.sock", "sentinel://:p@a,b:2/s/1"],
)
def test_stores_that_can_be_are_taken(store: str) -> None:
    assert load(CoordinatorSettings, ["--store", store], "headrace coordinator").store == store


def test_commands_reckon_with_the_defaults_that_a_worker_has() -> None:
    default = {name: field.default for name, field in WorkerSettings.model_fields.items()}
    options = {option.name: option.default for command in (plan.plan, doctor.doctor) for option in command.params}
    assert options["reads"] == Counts().reads == default["batches_in_flight"]
    assert options["engine"] == default["engine"]
    assert Load().read_ahead_bytes == default["read_ahead_bytes"]
    assert [doctor._setting(None, name) for name in ("socket_dir", "socket_group")] == [
        default["socket_dir"], default["socket_group"],
    ]  # fmt: skip
    counts = {name: one.default for name, one in inspect.signature(Counts).parameters.items()}
    assert {name: options[name] for name in counts if name != "ranks"} | {"ranks": 1} == counts
