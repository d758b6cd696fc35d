import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Job(_message.Message):
    __slots__ = ("name", "spec_json")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SPEC_JSON_FIELD_NUMBER: _ClassVar[int]
    name: str
    spec_json: str
    def __init__(self, name: _Optional[str] = ..., spec_json: _Optional[str] = ...) -> None: ...

class OpenJobRequest(_message.Message):
    __slots__ = ("protocol", "job", "world", "keep_s")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    KEEP_S_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    job: Job
    world: int
    keep_s: int
    def __init__(self, protocol: _Optional[int] = ..., job: _Optional[_Union[Job, _Mapping]] = ..., world: _Optional[int] = ..., keep_s: _Optional[int] = ...) -> None: ...

class OpenJobResponse(_message.Message):
    __slots__ = ("job", "plan_hash")
    JOB_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    job: Job
    plan_hash: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., plan_hash: _Optional[str] = ...) -> None: ...

class StreamState(_message.Message):
    __slots__ = ("epoch", "first", "step", "world")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    first: int
    step: int
    world: int
    def __init__(self, epoch: _Optional[int] = ..., first: _Optional[int] = ..., step: _Optional[int] = ..., world: _Optional[int] = ...) -> None: ...

class RankId(_message.Message):
    __slots__ = ("job", "attempt", "rank", "nonce")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    rank: int
    nonce: str
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., nonce: _Optional[str] = ...) -> None: ...

class JoinSessionRequest(_message.Message):
    __slots__ = ("protocol", "id", "world", "state", "plan_hash", "epochs", "node")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    id: RankId
    world: int
    state: StreamState
    plan_hash: str
    epochs: int
    node: str
    def __init__(self, protocol: _Optional[int] = ..., id: _Optional[_Union[RankId, _Mapping]] = ..., world: _Optional[int] = ..., state: _Optional[_Union[StreamState, _Mapping]] = ..., plan_hash: _Optional[str] = ..., epochs: _Optional[int] = ..., node: _Optional[str] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("job", "attempt", "world", "epoch", "first", "epochs", "window", "lanes", "token_hashes")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    WORLD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    EPOCHS_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    TOKEN_HASHES_FIELD_NUMBER: _ClassVar[int]
    job: Job
    attempt: int
    world: int
    epoch: int
    first: int
    epochs: int
    window: int
    lanes: int
    token_hashes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., attempt: _Optional[int] = ..., world: _Optional[int] = ..., epoch: _Optional[int] = ..., first: _Optional[int] = ..., epochs: _Optional[int] = ..., window: _Optional[int] = ..., lanes: _Optional[int] = ..., token_hashes: _Optional[_Iterable[str]] = ...) -> None: ...

class JoinSessionResponse(_message.Message):
    __slots__ = ("attempt", "session", "awaited")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    session: Session
    awaited: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, attempt: _Optional[int] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., awaited: _Optional[_Iterable[int]] = ...) -> None: ...

class WatchSessionRequest(_message.Message):
    __slots__ = ("id", "session", "stop_index", "stop_why")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    STOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    STOP_WHY_FIELD_NUMBER: _ClassVar[int]
    id: RankId
    session: Session
    stop_index: int
    stop_why: str
    def __init__(self, id: _Optional[_Union[RankId, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., stop_index: _Optional[int] = ..., stop_why: _Optional[str] = ...) -> None: ...

class Endpoint(_message.Message):
    __slots__ = ("worker", "incarnation", "node", "grpc", "socket")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    GRPC_FIELD_NUMBER: _ClassVar[int]
    SOCKET_FIELD_NUMBER: _ClassVar[int]
    worker: str
    incarnation: str
    node: str
    grpc: str
    socket: str
    def __init__(self, worker: _Optional[str] = ..., incarnation: _Optional[str] = ..., node: _Optional[str] = ..., grpc: _Optional[str] = ..., socket: _Optional[str] = ...) -> None: ...

class WatchSessionResponse(_message.Message):
    __slots__ = ("version", "window", "owners", "tokens", "endpoints", "stop_index", "stop_why")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WINDOW_FIELD_NUMBER: _ClassVar[int]
    OWNERS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    STOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    STOP_WHY_FIELD_NUMBER: _ClassVar[int]
    version: int
    window: int
    owners: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    endpoints: _containers.RepeatedCompositeFieldContainer[Endpoint]
    stop_index: int
    stop_why: str
    def __init__(self, version: _Optional[int] = ..., window: _Optional[int] = ..., owners: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., endpoints: _Optional[_Iterable[_Union[Endpoint, _Mapping]]] = ..., stop_index: _Optional[int] = ..., stop_why: _Optional[str] = ...) -> None: ...

class WaitByCause(_message.Message):
    __slots__ = ("cause", "seconds")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    cause: str
    seconds: float
    def __init__(self, cause: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class BadSample(_message.Message):
    __slots__ = ("epoch", "sample", "key", "reason")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sample: int
    key: str
    reason: str
    def __init__(self, epoch: _Optional[int] = ..., sample: _Optional[int] = ..., key: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class BadCount(_message.Message):
    __slots__ = ("reason", "count")
    REASON_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    reason: str
    count: int
    def __init__(self, reason: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...

class ReportProgressRequest(_message.Message):
    __slots__ = ("id", "session", "consumed", "committed", "wait_s", "wait_by_cause", "elapsed_s", "transport", "bad_samples", "batches_remade", "node", "waiting_s", "troubles", "samples", "bad_counts", "stop_index", "stop_why", "batches_fenced")
    ID_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    CONSUMED_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    WAIT_BY_CAUSE_FIELD_NUMBER: _ClassVar[int]
    ELAPSED_S_FIELD_NUMBER: _ClassVar[int]
    TRANSPORT_FIELD_NUMBER: _ClassVar[int]
    BAD_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BATCHES_REMADE_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    WAITING_S_FIELD_NUMBER: _ClassVar[int]
    TROUBLES_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_FIELD_NUMBER: _ClassVar[int]
    BAD_COUNTS_FIELD_NUMBER: _ClassVar[int]
    STOP_INDEX_FIELD_NUMBER: _ClassVar[int]
    STOP_WHY_FIELD_NUMBER: _ClassVar[int]
    BATCHES_FENCED_FIELD_NUMBER: _ClassVar[int]
    id: RankId
    session: Session
    consumed: int
    committed: int
    wait_s: float
    wait_by_cause: _containers.RepeatedCompositeFieldContainer[WaitByCause]
    elapsed_s: float
    transport: str
    bad_samples: _containers.RepeatedCompositeFieldContainer[BadSample]
    batches_remade: int
    node: str
    waiting_s: float
    troubles: _containers.RepeatedCompositeFieldContainer[LaneTrouble]
    samples: int
    bad_counts: _containers.RepeatedCompositeFieldContainer[BadCount]
    stop_index: int
    stop_why: str
    batches_fenced: int
    def __init__(self, id: _Optional[_Union[RankId, _Mapping]] = ..., session: _Optional[_Union[Session, _Mapping]] = ..., consumed: _Optional[int] = ..., committed: _Optional[int] = ..., wait_s: _Optional[float] = ..., wait_by_cause: _Optional[_Iterable[_Union[WaitByCause, _Mapping]]] = ..., elapsed_s: _Optional[float] = ..., transport: _Optional[str] = ..., bad_samples: _Optional[_Iterable[_Union[BadSample, _Mapping]]] = ..., batches_remade: _Optional[int] = ..., node: _Optional[str] = ..., waiting_s: _Optional[float] = ..., troubles: _Optional[_Iterable[_Union[LaneTrouble, _Mapping]]] = ..., samples: _Optional[int] = ..., bad_counts: _Optional[_Iterable[_Union[BadCount, _Mapping]]] = ..., stop_index: _Optional[int] = ..., stop_why: _Optional[str] = ..., batches_fenced: _Optional[int] = ...) -> None: ...

class LaneTrouble(_message.Message):
    __slots__ = ("lane", "worker", "token", "waited", "connected", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WAITED_FIELD_NUMBER: _ClassVar[int]
    CONNECTED_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    worker: str
    token: int
    waited: _duration_pb2.Duration
    connected: bool
    reason: str
    def __init__(self, lane: _Optional[int] = ..., worker: _Optional[str] = ..., token: _Optional[int] = ..., waited: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., connected: bool = ..., reason: _Optional[str] = ...) -> None: ...

class ReportProgressResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaveSessionRequest(_message.Message):
    __slots__ = ("id", "last")
    ID_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    id: RankId
    last: ReportProgressRequest
    def __init__(self, id: _Optional[_Union[RankId, _Mapping]] = ..., last: _Optional[_Union[ReportProgressRequest, _Mapping]] = ...) -> None: ...

class LeaveSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SessionLeases(_message.Message):
    __slots__ = ("job", "attempt", "lanes", "tokens", "session")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    lanes: _containers.RepeatedScalarFieldContainer[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    session: Session
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., lanes: _Optional[_Iterable[int]] = ..., tokens: _Optional[_Iterable[int]] = ..., session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("protocol", "endpoint", "fingerprint", "ops", "samples_per_s", "threads", "draining", "held", "lagging", "unable_jobs", "pool", "retiring")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    OPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_S_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    LAGGING_FIELD_NUMBER: _ClassVar[int]
    UNABLE_JOBS_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    RETIRING_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    endpoint: Endpoint
    fingerprint: str
    ops: _containers.RepeatedScalarFieldContainer[str]
    samples_per_s: float
    threads: int
    draining: bool
    held: _containers.RepeatedCompositeFieldContainer[SessionLeases]
    lagging: _containers.RepeatedCompositeFieldContainer[LaggingLane]
    unable_jobs: _containers.RepeatedScalarFieldContainer[str]
    pool: str
    retiring: bool
    def __init__(self, protocol: _Optional[int] = ..., endpoint: _Optional[_Union[Endpoint, _Mapping]] = ..., fingerprint: _Optional[str] = ..., ops: _Optional[_Iterable[str]] = ..., samples_per_s: _Optional[float] = ..., threads: _Optional[int] = ..., draining: bool = ..., held: _Optional[_Iterable[_Union[SessionLeases, _Mapping]]] = ..., lagging: _Optional[_Iterable[_Union[LaggingLane, _Mapping]]] = ..., unable_jobs: _Optional[_Iterable[str]] = ..., pool: _Optional[str] = ..., retiring: bool = ...) -> None: ...

class LaggingLane(_message.Message):
    __slots__ = ("job", "lane", "behind")
    JOB_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    BEHIND_FIELD_NUMBER: _ClassVar[int]
    job: str
    lane: int
    behind: _duration_pb2.Duration
    def __init__(self, job: _Optional[str] = ..., lane: _Optional[int] = ..., behind: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("leases", "ttl", "interval")
    LEASES_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    leases: _containers.RepeatedCompositeFieldContainer[SessionLeases]
    ttl: _duration_pb2.Duration
    interval: _duration_pb2.Duration
    def __init__(self, leases: _Optional[_Iterable[_Union[SessionLeases, _Mapping]]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
