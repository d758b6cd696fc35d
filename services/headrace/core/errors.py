"""Every error of Headrace: one base class, ids as attributes, and what to do next in the message.

Pure module: used by all processes. `wire.status` maps `grpc_status` to gRPC and back, so that a client
catches the class that the coordinator or worker raised.
"""

from __future__ import annotations

from typing import ClassVar

from headrace.core.masking import mask_address

Ids = dict[str, str | int]


class HeadraceError(Exception):
    """Base of all Headrace errors.

    Attributes: `code` is the stable name on the wire; `retriable` says that the same call may succeed later
    without a change by the user; `ids` names what was concerned (job, rank, lane, shard, ...). Each id can also be
    read as an attribute: `error.ids["rank"] == error.rank`. Credentials in addresses are masked, in text and ids.
    """

    code: ClassVar[str] = "internal"
    retriable: ClassVar[bool] = False
    grpc_status: ClassVar[str] = "INTERNAL"

    def __init__(self, message: str, **ids: str | int) -> None:
        self.message = mask_address(message)
        super().__init__(self.message)
        self.ids: Ids = {name: mask_address(value) if isinstance(value, str) else value for name, value in ids.items()}

    def __getattr__(self, name: str) -> str | int:
        ids: Ids = self.__dict__.get("ids", {})
        if name in ids:
            return ids[name]
        raise AttributeError(f"{type(self).__name__} has no id {name!r}; it has {sorted(ids)}")

    def __str__(self) -> str:
        tail = " ".join(f"{key}={value}" for key, value in sorted(self.ids.items()))
        return f"{self.message} [{self.code}{' ' + tail if tail else ''}]"


# --- data sets -------------------------------------------------------------------------------------------------------


class ManifestInvalid(HeadraceError):
    """The manifest or an index cannot be read as one, or does not carry the hash that names it."""

    code = "manifest_invalid"
    grpc_status = "FAILED_PRECONDITION"


class ManifestMissing(HeadraceError):
    """No manifest at that address."""

    code = "manifest_missing"
    grpc_status = "NOT_FOUND"


class ShardMissing(HeadraceError):
    """A shard that the manifest lists is not there."""

    code = "shard_missing"
    grpc_status = "FAILED_PRECONDITION"


class ShardChanged(HeadraceError):
    """A shard's size or hash no longer fits the manifest."""

    code = "shard_changed"
    grpc_status = "FAILED_PRECONDITION"


class ShardInvalid(HeadraceError):
    """A shard cannot be indexed: truncated, empty file, or not a tar."""

    code = "shard_invalid"
    grpc_status = "FAILED_PRECONDITION"


class SourceUnavailable(HeadraceError):
    """A read failed for a reason that may pass (network, throttling); raised after the retries are used up."""

    code = "source_unavailable"
    retriable = True
    grpc_status = "UNAVAILABLE"


class AccessDenied(HeadraceError):
    """A storage or service refuses us: credentials or permissions are missing; trying again does not help."""

    code = "access_denied"
    grpc_status = "PERMISSION_DENIED"


class LabelInvalid(HeadraceError):
    """A label does not follow the data set's label rule."""

    code = "label_invalid"
    grpc_status = "FAILED_PRECONDITION"


class BatchFailed(HeadraceError):
    """A batch cannot be made: all its samples are bad, or one is and the job's policy is `fail`."""

    code = "batch_failed"
    grpc_status = "DATA_LOSS"


class TooManyBadSamples(HeadraceError):
    """More samples were bad than the job's `max_bad_share` lets pass; they were substituted until here."""

    code = "too_many_bad_samples"
    grpc_status = "DATA_LOSS"


# --- jobs ------------------------------------------------------------------------------------------------------------


class SpecInvalid(HeadraceError):
    """A job or pipeline field is unknown or has a value that cannot work."""

    code = "spec_invalid"
    grpc_status = "INVALID_ARGUMENT"


class NoSteps(HeadraceError):
    """The plan gives no rank a single step: too few samples for this batch size and world size."""

    code = "no_steps"
    grpc_status = "INVALID_ARGUMENT"


class JobUnknown(HeadraceError):
    """No job of that name is open."""

    code = "job_unknown"
    grpc_status = "NOT_FOUND"


class JobMismatch(HeadraceError):
    """A job of that name is open with other parameters."""

    code = "job_mismatch"
    grpc_status = "ALREADY_EXISTS"


class EngineUnsupported(HeadraceError):
    """No live worker's engine has an operation that the job's pipeline needs."""

    code = "engine_unsupported"
    grpc_status = "FAILED_PRECONDITION"


# --- sessions and leases ---------------------------------------------------------------------------------------------


class SessionUnknown(HeadraceError):
    """The store has no such session (yet)."""

    code = "session_unknown"
    retriable = True
    grpc_status = "NOT_FOUND"


class SessionSuperseded(HeadraceError):
    """A later attempt of the job has begun; this one is over."""

    code = "session_superseded"
    grpc_status = "ABORTED"


class RankClaimed(HeadraceError):
    """Another live client holds this rank."""

    code = "rank_claimed"
    grpc_status = "ALREADY_EXISTS"


class WorldMismatch(HeadraceError):
    """The ranks of one attempt do not agree on the world size, or a rank lies outside it."""

    code = "world_mismatch"
    grpc_status = "INVALID_ARGUMENT"


class StateMismatch(HeadraceError):
    """The ranks of one attempt present different states to resume from."""

    code = "state_mismatch"
    grpc_status = "FAILED_PRECONDITION"


class StateInvalid(HeadraceError):
    """A state to resume from does not fit the job (other plan, other batch size in mid-epoch, malformed), or comes too late."""

    code = "state_invalid"
    grpc_status = "INVALID_ARGUMENT"


class BatchReleased(HeadraceError):
    """A batch's pixels were used after the next batch was asked for: their memory holds another batch by now."""

    code = "batch_released"
    grpc_status = "FAILED_PRECONDITION"


class StaleToken(HeadraceError):
    """A lane lease's fencing token is older than the newest one issued."""

    code = "stale_token"
    grpc_status = "ABORTED"


# --- infrastructure --------------------------------------------------------------------------------------------------


class StoreUnavailable(HeadraceError):
    """Redis cannot be reached or refuses to write."""

    code = "store_unavailable"
    retriable = True
    grpc_status = "UNAVAILABLE"


class RecordInvalid(HeadraceError):
    """A record in the store cannot be read: damaged, or written by another version or by somebody else."""

    code = "record_invalid"
    retriable = True
    grpc_status = "DATA_LOSS"


class StoreConflict(HeadraceError):
    """A compare-and-set lost more often in a row than is plausible."""

    code = "store_conflict"
    retriable = True
    grpc_status = "ABORTED"


class CoordinatorUnavailable(HeadraceError):
    """No coordinator replica can be reached."""

    code = "coordinator_unavailable"
    retriable = True
    grpc_status = "UNAVAILABLE"


class WaitTimeout(HeadraceError):
    """A wait passed its deadline; the message names who is awaited and since when."""

    code = "wait_timeout"
    retriable = True
    grpc_status = "DEADLINE_EXCEEDED"


class TransportUnavailable(HeadraceError):
    """The job demands a transport that cannot be had here."""

    code = "transport_unavailable"
    grpc_status = "FAILED_PRECONDITION"


class ProtocolMismatch(HeadraceError):
    """The peer speaks another major version of the protocol, or broke its rules."""

    code = "protocol_mismatch"
    grpc_status = "FAILED_PRECONDITION"


class PeerGone(HeadraceError):
    """A connection ended while it was needed."""

    code = "peer_gone"
    retriable = True
    grpc_status = "UNAVAILABLE"


class PortInUse(HeadraceError):
    """A listening address is taken."""

    code = "port_in_use"
    grpc_status = "FAILED_PRECONDITION"


class DiskFull(HeadraceError):
    """No space left where something must be written."""

    code = "disk_full"
    grpc_status = "RESOURCE_EXHAUSTED"


class OutOfDescriptors(HeadraceError):
    """This process may open no more files."""

    code = "out_of_descriptors"
    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class GpuMemoryFull(HeadraceError):
    """A GPU has no memory for a batch. A worker tries again with fewer at once, and tells it only if one alone fails."""

    code = "gpu_memory_full"
    retriable = True
    grpc_status = "RESOURCE_EXHAUSTED"


class GpuLost(TransportUnavailable):
    """CUDA lets this process use its GPU no more. A worker that meets it ends, so that it is started anew."""

    code = "gpu_lost"
    retriable = True
    grpc_status = "UNAVAILABLE"


class ConfigInvalid(HeadraceError):
    """A setting is unknown or impossible."""

    code = "config_invalid"
    grpc_status = "INVALID_ARGUMENT"


class Unauthenticated(HeadraceError):
    """The caller's token is missing or wrong."""

    code = "unauthenticated"
    grpc_status = "UNAUTHENTICATED"


def _subclasses(cls: type[HeadraceError]) -> list[type[HeadraceError]]:
    return [cls, *(leaf for sub in cls.__subclasses__() for leaf in _subclasses(sub))]


BY_CODE: dict[str, type[HeadraceError]] = {cls.code: cls for cls in _subclasses(HeadraceError)}


def from_code(code: str, message: str, ids: Ids) -> HeadraceError:
    """Rebuild an error that another process raised; an unknown code becomes the base class."""
    cls = BY_CODE.get(code, HeadraceError)
    # Ids are keyword arguments beside these two: a peer must not be able to break the call.
    return cls(message, **{name: value for name, value in ids.items() if name not in ("self", "message")})
