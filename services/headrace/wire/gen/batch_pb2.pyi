from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class BatchMeta(_message.Message):
    __slots__ = ("job", "worker", "plan_hash", "fingerprint", "keys", "label_json", "bad_keys")
    JOB_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    PLAN_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    LABEL_JSON_FIELD_NUMBER: _ClassVar[int]
    BAD_KEYS_FIELD_NUMBER: _ClassVar[int]
    job: str
    worker: str
    plan_hash: str
    fingerprint: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    label_json: _containers.RepeatedScalarFieldContainer[bytes]
    bad_keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, job: _Optional[str] = ..., worker: _Optional[str] = ..., plan_hash: _Optional[str] = ..., fingerprint: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., label_json: _Optional[_Iterable[bytes]] = ..., bad_keys: _Optional[_Iterable[str]] = ...) -> None: ...

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
