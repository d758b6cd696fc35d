from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BatchMeta(_message.Message):
    __slots__ = ("job", "attempt", "rank", "index", "epoch", "step", "batch", "lane", "token", "worker", "plan_hash", "fingerprint", "sample_ids", "source_ids", "status", "reasons", "keys", "labels", "label_width", "label_json", "milestones", "bad_keys")
    JOB_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    BATCH_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    SAMPLE_IDS_FIELD_NUMBER: _ClassVar[int]
    SOURCE_IDS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REASONS_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    LABEL_WIDTH_FIELD_NUMBER: _ClassVar[int]
    LABEL_JSON_FIELD_NUMBER: _ClassVar[int]
    MILESTONES_FIELD_NUMBER: _ClassVar[int]
    BAD_KEYS_FIELD_NUMBER: _ClassVar[int]
    job: str
    attempt: int
    rank: int
    index: int
    epoch: int
    step: int
    batch: int
    lane: int
    token: int
    worker: str
    plan_hash: str
    fingerprint: str
    sample_ids: bytes
    source_ids: bytes
    status: bytes
    reasons: bytes
    keys: _containers.RepeatedScalarFieldContainer[str]
    labels: bytes
    label_width: int
    label_json: _containers.RepeatedScalarFieldContainer[bytes]
    milestones: _containers.RepeatedScalarFieldContainer[float]
    bad_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., attempt: _Optional[int] = ..., rank: _Optional[int] = ..., index: _Optional[int] = ..., epoch: _Optional[int] = ..., step: _Optional[int] = ..., batch: _Optional[int] = ..., lane: _Optional[int] = ..., token: _Optional[int] = ..., worker: _Optional[str] = ..., plan_hash: _Optional[str] = ..., fingerprint: _Optional[str] = ..., sample_ids: _Optional[bytes] = ..., source_ids: _Optional[bytes] = ..., status: _Optional[bytes] = ..., reasons: _Optional[bytes] = ..., keys: _Optional[_Iterable[str]] = ..., labels: _Optional[bytes] = ..., label_width: _Optional[int] = ..., label_json: _Optional[_Iterable[bytes]] = ..., milestones: _Optional[_Iterable[float]] = ..., bad_keys: _Optional[_Iterable[str]] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("code", "message", "text_ids", "number_ids")
    class TextIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class NumberIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TEXT_IDS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_IDS_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    text_ids: _containers.ScalarMap[str, str]
    number_ids: _containers.ScalarMap[str, int]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., text_ids: _Optional[_Mapping[str, str]] = ..., number_ids: _Optional[_Mapping[str, int]] = ...) -> None: ...
