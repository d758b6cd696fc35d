"""Which transport a worker is reached by, and why not a better one: `cuda_ipc`, then `shm`, then `grpc`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import TransportUnavailable
from headrace.core.job import Endpoint

NO_CUDA = "no CUDA engine in this worker"


@dataclass(frozen=True, slots=True)
class Rung:
    """A chosen transport; the reason names what refused each better one, or who chose."""

    name: str
    reason: str


def walk(choice: TransportChoice, endpoint: Endpoint, node: str, shm_failure: str = "") -> Rung:
    """The rung for one worker. shm_failure: why shared memory was tried and did not work, or empty.

    Raises TransportUnavailable (ids: worker, reason) where the demanded rung cannot be had.
    """
    refused_shm = _why_not_shm(endpoint, node) or shm_failure
    match choice:
        case "cuda_ipc":
            raise _unavailable("cuda_ipc", endpoint, NO_CUDA)
        case "shm" if refused_shm:
            raise _unavailable("shm", endpoint, refused_shm)
        case "shm":
            return Rung("shm", "demanded by the caller")
        case "auto" if not refused_shm:
            return Rung("shm", f"same node; cuda_ipc: {NO_CUDA}")
    if not endpoint.grpc:
        raise _unavailable("grpc", endpoint, "it announces no gRPC address")
    if choice == "grpc":
        return Rung("grpc", "forced by the caller")
    return Rung("grpc", f"cuda_ipc: {NO_CUDA}; shm: {refused_shm}")


def _why_not_shm(endpoint: Endpoint, node: str) -> str:
    if endpoint.node != node:
        return "the worker runs on another node"
    return "" if endpoint.socket else "the worker offers no socket"


def _unavailable(rung: str, endpoint: Endpoint, reason: str) -> TransportUnavailable:
    return TransportUnavailable(
        f"worker {endpoint.worker} cannot be reached by {rung}: {reason}; use transport='auto' to let the client choose",
        worker=endpoint.worker,
        reason=reason,
    )
