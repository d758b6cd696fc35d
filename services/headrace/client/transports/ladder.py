"""Which transport a worker is reached by, and why not a better one: `cuda_ipc`, then `shm`, then `grpc`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.client.transports.protocol import TransportChoice
from headrace.core.errors import TransportUnavailable
from headrace.core.job import Endpoint

NO_GPU = "this rank asked for no GPU"


@dataclass(frozen=True, slots=True)
class Rung:
    """A chosen transport; the reason names what refused each better one, or who chose."""

    name: str
    reason: str


def walk(choice: TransportChoice, endpoint: Endpoint, node: str, shm_failure: str = "", gpu_failure: str = NO_GPU) -> Rung:
    """The rung for one worker. shm_failure: why shared memory was tried and did not work, or empty.

    gpu_failure: why device memory is not asked for, or was tried and did not work; empty: it is to be tried, and what the
    worker answers decides between `cuda_ipc` and `shm` (`answered`).
    Raises TransportUnavailable (ids: worker, reason) where the demanded rung cannot be had.
    """
    refused_shm = _why_not_shm(endpoint, node) or shm_failure
    refused_gpu = refused_shm or gpu_failure  # its messages come by the same socket
    match choice:
        case "cuda_ipc" if refused_gpu:
            raise _unavailable("cuda_ipc", endpoint, refused_gpu)
        case "cuda_ipc":
            return Rung("cuda_ipc", "demanded by the caller")
        case "shm" if refused_shm:
            raise _unavailable("shm", endpoint, refused_shm)
        case "shm":
            return Rung("shm", "demanded by the caller")
        case "auto" if not refused_gpu:
            return Rung("cuda_ipc", "same GPU")
        case "auto" if not refused_shm:
            return Rung("shm", f"same node; cuda_ipc: {refused_gpu}")
    if not endpoint.grpc:
        raise _unavailable("grpc", endpoint, "it announces no gRPC address")
    if choice == "grpc":
        return Rung("grpc", "forced by the caller")
    return Rung("grpc", f"cuda_ipc: {gpu_failure or refused_gpu}; shm: {refused_shm}")


def answered(choice: TransportChoice, endpoint: Endpoint, why_no_device: str) -> Rung:
    """The rung where a worker was asked for device memory and gave none. Raises TransportUnavailable if it was demanded."""
    reason = why_no_device or "the worker's version shares no GPU memory: upgrade it"
    if choice == "cuda_ipc":
        raise _unavailable("cuda_ipc", endpoint, reason)
    return Rung("shm", f"same node; cuda_ipc: {reason}")


def _why_not_shm(endpoint: Endpoint, node: str) -> str:
    if endpoint.node != node:
        return "the worker runs on another node"
    return "" if endpoint.socket else "the worker offers no socket (its --socket-dir is empty)"


def _unavailable(rung: str, endpoint: Endpoint, reason: str) -> TransportUnavailable:
    return TransportUnavailable(
        f"worker {endpoint.worker} cannot be reached by {rung}: {reason}; use transport='auto' to let the client choose",
        worker=endpoint.worker,
        reason=reason,
    )
