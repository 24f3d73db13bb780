from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EnqueueOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENQUEUE_OUTCOME_UNSPECIFIED: _ClassVar[EnqueueOutcome]
    ENQUEUE_OUTCOME_INSERTED: _ClassVar[EnqueueOutcome]
    ENQUEUE_OUTCOME_IGNORED: _ClassVar[EnqueueOutcome]
    ENQUEUE_OUTCOME_REPLACED: _ClassVar[EnqueueOutcome]

class ResultOutcome(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RESULT_OUTCOME_UNSPECIFIED: _ClassVar[ResultOutcome]
    RESULT_OUTCOME_PENDING: _ClassVar[ResultOutcome]
    RESULT_OUTCOME_RETURNED: _ClassVar[ResultOutcome]
    RESULT_OUTCOME_FAILED: _ClassVar[ResultOutcome]
ENQUEUE_OUTCOME_UNSPECIFIED: EnqueueOutcome
ENQUEUE_OUTCOME_INSERTED: EnqueueOutcome
ENQUEUE_OUTCOME_IGNORED: EnqueueOutcome
ENQUEUE_OUTCOME_REPLACED: EnqueueOutcome
RESULT_OUTCOME_UNSPECIFIED: ResultOutcome
RESULT_OUTCOME_PENDING: ResultOutcome
RESULT_OUTCOME_RETURNED: ResultOutcome
RESULT_OUTCOME_FAILED: ResultOutcome

class GetRequest(_message.Message):
    __slots__ = ("key", "at")
    KEY_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    at: int
    def __init__(self, key: _Optional[bytes] = ..., at: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("value",)
    VALUE_FIELD_NUMBER: _ClassVar[int]
    value: bytes
    def __init__(self, value: _Optional[bytes] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("start", "end", "limit", "reverse", "at")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    limit: int
    reverse: bool
    at: int
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., limit: _Optional[int] = ..., reverse: _Optional[bool] = ..., at: _Optional[int] = ...) -> None: ...

class Pair(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("pairs", "more")
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    pairs: _containers.RepeatedCompositeFieldContainer[Pair]
    more: bool
    def __init__(self, pairs: _Optional[_Iterable[_Union[Pair, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class PutRequest(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ...) -> None: ...

class PutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DeleteRequest(_message.Message):
    __slots__ = ("key",)
    KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    def __init__(self, key: _Optional[bytes] = ...) -> None: ...

class DeleteResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class HeaderValue(_message.Message):
    __slots__ = ("text", "bytes", "integer", "number", "boolean")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    BOOLEAN_FIELD_NUMBER: _ClassVar[int]
    text: str
    bytes: bytes
    integer: int
    number: float
    boolean: bool
    def __init__(self, text: _Optional[str] = ..., bytes: _Optional[bytes] = ..., integer: _Optional[int] = ..., number: _Optional[float] = ..., boolean: _Optional[bool] = ...) -> None: ...

class Due(_message.Message):
    __slots__ = ("seconds", "unix_milliseconds")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    UNIX_MILLISECONDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    unix_milliseconds: int
    def __init__(self, seconds: _Optional[float] = ..., unix_milliseconds: _Optional[int] = ...) -> None: ...

class SendRequest(_message.Message):
    __slots__ = ("key", "value", "headers", "deliver_at")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeaderValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeaderValue, _Mapping]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    headers: _containers.MessageMap[str, HeaderValue]
    deliver_at: Due
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, HeaderValue]] = ..., deliver_at: _Optional[_Union[Due, _Mapping]] = ...) -> None: ...

class SendResponse(_message.Message):
    __slots__ = ("timestamp",)
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    timestamp: int
    def __init__(self, timestamp: _Optional[int] = ...) -> None: ...

class IncrementRequest(_message.Message):
    __slots__ = ("key", "by")
    KEY_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    by: int
    def __init__(self, key: _Optional[bytes] = ..., by: _Optional[int] = ...) -> None: ...

class IncrementResponse(_message.Message):
    __slots__ = ("sum",)
    SUM_FIELD_NUMBER: _ClassVar[int]
    sum: int
    def __init__(self, sum: _Optional[int] = ...) -> None: ...

class EnqueueRequest(_message.Message):
    __slots__ = ("queue", "payload", "id", "kind", "key", "priority", "deliver_at", "group", "headers")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeaderValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeaderValue, _Mapping]] = ...) -> None: ...
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    DELIVER_AT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    payload: bytes
    id: bytes
    kind: str
    key: bytes
    priority: int
    deliver_at: Due
    group: str
    headers: _containers.MessageMap[str, HeaderValue]
    def __init__(self, queue: _Optional[str] = ..., payload: _Optional[bytes] = ..., id: _Optional[bytes] = ..., kind: _Optional[str] = ..., key: _Optional[bytes] = ..., priority: _Optional[int] = ..., deliver_at: _Optional[_Union[Due, _Mapping]] = ..., group: _Optional[str] = ..., headers: _Optional[_Mapping[str, HeaderValue]] = ...) -> None: ...

class EnqueueResponse(_message.Message):
    __slots__ = ("id", "outcome")
    ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    id: bytes
    outcome: EnqueueOutcome
    def __init__(self, id: _Optional[bytes] = ..., outcome: _Optional[_Union[EnqueueOutcome, str]] = ...) -> None: ...

class ResultRequest(_message.Message):
    __slots__ = ("queue", "id", "kind", "wait_seconds")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    id: bytes
    kind: str
    wait_seconds: float
    def __init__(self, queue: _Optional[str] = ..., id: _Optional[bytes] = ..., kind: _Optional[str] = ..., wait_seconds: _Optional[float] = ...) -> None: ...

class ResultResponse(_message.Message):
    __slots__ = ("outcome", "value", "failure")
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    outcome: ResultOutcome
    value: bytes
    failure: TaskFailure
    def __init__(self, outcome: _Optional[_Union[ResultOutcome, str]] = ..., value: _Optional[bytes] = ..., failure: _Optional[_Union[TaskFailure, _Mapping]] = ...) -> None: ...

class TaskFailure(_message.Message):
    __slots__ = ("type", "reason", "traceback")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    type: str
    reason: str
    traceback: str
    def __init__(self, type: _Optional[str] = ..., reason: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("node_id", "leader", "timestamp", "disk_bytes", "refused", "enqueued", "delivered", "executed", "pending", "dead", "dead_letters", "nodes", "services")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    DISK_BYTES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    EXECUTED_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    DEAD_LETTERS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    leader: int
    timestamp: int
    disk_bytes: int
    refused: str
    enqueued: int
    delivered: int
    executed: int
    pending: int
    dead: int
    dead_letters: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeStatus]
    services: _containers.RepeatedCompositeFieldContainer[ServiceStatus]
    def __init__(self, node_id: _Optional[int] = ..., leader: _Optional[int] = ..., timestamp: _Optional[int] = ..., disk_bytes: _Optional[int] = ..., refused: _Optional[str] = ..., enqueued: _Optional[int] = ..., delivered: _Optional[int] = ..., executed: _Optional[int] = ..., pending: _Optional[int] = ..., dead: _Optional[int] = ..., dead_letters: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeStatus, _Mapping]]] = ..., services: _Optional[_Iterable[_Union[ServiceStatus, _Mapping]]] = ...) -> None: ...

class NodeStatus(_message.Message):
    __slots__ = ("node_id", "address", "entries_behind", "silent_seconds", "retired")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_BEHIND_FIELD_NUMBER: _ClassVar[int]
    SILENT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_FIELD_NUMBER: _ClassVar[int]
    node_id: int
    address: str
    entries_behind: int
    silent_seconds: float
    retired: bool
    def __init__(self, node_id: _Optional[int] = ..., address: _Optional[str] = ..., entries_behind: _Optional[int] = ..., silent_seconds: _Optional[float] = ..., retired: _Optional[bool] = ...) -> None: ...

class ServiceStatus(_message.Message):
    __slots__ = ("name", "running", "failures", "trouble")
    NAME_FIELD_NUMBER: _ClassVar[int]
    RUNNING_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    running: bool
    failures: int
    trouble: str
    def __init__(self, name: _Optional[str] = ..., running: _Optional[bool] = ..., failures: _Optional[int] = ..., trouble: _Optional[str] = ...) -> None: ...

class TransactionRequest(_message.Message):
    __slots__ = ("begin", "operations", "number")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    OPERATIONS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    begin: Begin
    operations: _containers.RepeatedCompositeFieldContainer[Operation]
    number: int
    def __init__(self, begin: _Optional[_Union[Begin, _Mapping]] = ..., operations: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., number: _Optional[int] = ...) -> None: ...

class Begin(_message.Message):
    __slots__ = ("transaction_id", "timeout_seconds")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    timeout_seconds: float
    def __init__(self, transaction_id: _Optional[bytes] = ..., timeout_seconds: _Optional[float] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("get", "get_for_update", "scan", "put", "delete", "send", "defer", "reap", "peek", "enqueue", "claim", "acknowledge", "reject", "commit", "increment")
    GET_FIELD_NUMBER: _ClassVar[int]
    GET_FOR_UPDATE_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    SEND_FIELD_NUMBER: _ClassVar[int]
    DEFER_FIELD_NUMBER: _ClassVar[int]
    REAP_FIELD_NUMBER: _ClassVar[int]
    PEEK_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGE_FIELD_NUMBER: _ClassVar[int]
    REJECT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    INCREMENT_FIELD_NUMBER: _ClassVar[int]
    get: GetRequest
    get_for_update: GetRequest
    scan: ScanRequest
    put: PutRequest
    delete: DeleteRequest
    send: SendRequest
    defer: DeferRequest
    reap: ReapRequest
    peek: PeekRequest
    enqueue: EnqueueRequest
    claim: ClaimRequest
    acknowledge: AcknowledgeRequest
    reject: RejectRequest
    commit: CommitRequest
    increment: IncrementRequest
    def __init__(self, get: _Optional[_Union[GetRequest, _Mapping]] = ..., get_for_update: _Optional[_Union[GetRequest, _Mapping]] = ..., scan: _Optional[_Union[ScanRequest, _Mapping]] = ..., put: _Optional[_Union[PutRequest, _Mapping]] = ..., delete: _Optional[_Union[DeleteRequest, _Mapping]] = ..., send: _Optional[_Union[SendRequest, _Mapping]] = ..., defer: _Optional[_Union[DeferRequest, _Mapping]] = ..., reap: _Optional[_Union[ReapRequest, _Mapping]] = ..., peek: _Optional[_Union[PeekRequest, _Mapping]] = ..., enqueue: _Optional[_Union[EnqueueRequest, _Mapping]] = ..., claim: _Optional[_Union[ClaimRequest, _Mapping]] = ..., acknowledge: _Optional[_Union[AcknowledgeRequest, _Mapping]] = ..., reject: _Optional[_Union[RejectRequest, _Mapping]] = ..., commit: _Optional[_Union[CommitRequest, _Mapping]] = ..., increment: _Optional[_Union[IncrementRequest, _Mapping]] = ...) -> None: ...

class TransactionResponse(_message.Message):
    __slots__ = ("transaction_id", "results", "number", "error")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    RESULTS_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    results: _containers.RepeatedCompositeFieldContainer[Result]
    number: int
    error: RpcStatus
    def __init__(self, transaction_id: _Optional[bytes] = ..., results: _Optional[_Iterable[_Union[Result, _Mapping]]] = ..., number: _Optional[int] = ..., error: _Optional[_Union[RpcStatus, _Mapping]] = ...) -> None: ...

class BatchExecuteRequest(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionRequest]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionRequest, _Mapping]]] = ...) -> None: ...

class BatchExecuteResponse(_message.Message):
    __slots__ = ("transactions",)
    TRANSACTIONS_FIELD_NUMBER: _ClassVar[int]
    transactions: _containers.RepeatedCompositeFieldContainer[TransactionResponse]
    def __init__(self, transactions: _Optional[_Iterable[_Union[TransactionResponse, _Mapping]]] = ...) -> None: ...

class Result(_message.Message):
    __slots__ = ("get", "scan", "inbox", "enqueue", "claim", "commit", "increment")
    GET_FIELD_NUMBER: _ClassVar[int]
    SCAN_FIELD_NUMBER: _ClassVar[int]
    INBOX_FIELD_NUMBER: _ClassVar[int]
    ENQUEUE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    INCREMENT_FIELD_NUMBER: _ClassVar[int]
    get: GetResponse
    scan: ScanResponse
    inbox: InboxResponse
    enqueue: EnqueueResponse
    claim: ClaimResponse
    commit: CommitResponse
    increment: IncrementResponse
    def __init__(self, get: _Optional[_Union[GetResponse, _Mapping]] = ..., scan: _Optional[_Union[ScanResponse, _Mapping]] = ..., inbox: _Optional[_Union[InboxResponse, _Mapping]] = ..., enqueue: _Optional[_Union[EnqueueResponse, _Mapping]] = ..., claim: _Optional[_Union[ClaimResponse, _Mapping]] = ..., commit: _Optional[_Union[CommitResponse, _Mapping]] = ..., increment: _Optional[_Union[IncrementResponse, _Mapping]] = ...) -> None: ...

class DeferRequest(_message.Message):
    __slots__ = ("put", "delete", "increment", "delete_range", "accounting", "execute_at")
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    INCREMENT_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTING_FIELD_NUMBER: _ClassVar[int]
    EXECUTE_AT_FIELD_NUMBER: _ClassVar[int]
    put: PutRequest
    delete: DeleteRequest
    increment: IncrementRequest
    delete_range: DeleteRange
    accounting: Accounting
    execute_at: Due
    def __init__(self, put: _Optional[_Union[PutRequest, _Mapping]] = ..., delete: _Optional[_Union[DeleteRequest, _Mapping]] = ..., increment: _Optional[_Union[IncrementRequest, _Mapping]] = ..., delete_range: _Optional[_Union[DeleteRange, _Mapping]] = ..., accounting: _Optional[_Union[Accounting, _Mapping]] = ..., execute_at: _Optional[_Union[Due, _Mapping]] = ...) -> None: ...

class DeleteRange(_message.Message):
    __slots__ = ("start", "end")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ...) -> None: ...

class Accounting(_message.Message):
    __slots__ = ("key", "metrics")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    metrics: _containers.ScalarMap[str, int]
    def __init__(self, key: _Optional[bytes] = ..., metrics: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ReapRequest(_message.Message):
    __slots__ = ("key", "max_results", "wait_seconds", "max_attempts")
    KEY_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    max_results: int
    wait_seconds: float
    max_attempts: int
    def __init__(self, key: _Optional[bytes] = ..., max_results: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., max_attempts: _Optional[int] = ...) -> None: ...

class PeekRequest(_message.Message):
    __slots__ = ("key", "limit")
    KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    limit: int
    def __init__(self, key: _Optional[bytes] = ..., limit: _Optional[int] = ...) -> None: ...

class InboxResponse(_message.Message):
    __slots__ = ("messages", "more")
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    MORE_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[InboxMessage]
    more: bool
    def __init__(self, messages: _Optional[_Iterable[_Union[InboxMessage, _Mapping]]] = ..., more: _Optional[bool] = ...) -> None: ...

class InboxMessage(_message.Message):
    __slots__ = ("id", "value", "headers", "sent_at", "delivered_at", "attempts", "last_error")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeaderValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeaderValue, _Mapping]] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    SENT_AT_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    value: bytes
    headers: _containers.MessageMap[str, HeaderValue]
    sent_at: int
    delivered_at: int
    attempts: int
    last_error: str
    def __init__(self, id: _Optional[str] = ..., value: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, HeaderValue]] = ..., sent_at: _Optional[int] = ..., delivered_at: _Optional[int] = ..., attempts: _Optional[int] = ..., last_error: _Optional[str] = ...) -> None: ...

class ClaimRequest(_message.Message):
    __slots__ = ("queue", "max_results", "wait_seconds", "selection")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    MAX_RESULTS_FIELD_NUMBER: _ClassVar[int]
    WAIT_SECONDS_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    max_results: int
    wait_seconds: float
    selection: Selection
    def __init__(self, queue: _Optional[str] = ..., max_results: _Optional[int] = ..., wait_seconds: _Optional[float] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ...) -> None: ...

class Selection(_message.Message):
    __slots__ = ("start", "end", "kinds", "where")
    class WhereEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeaderValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeaderValue, _Mapping]] = ...) -> None: ...
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    WHERE_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    kinds: _containers.RepeatedScalarFieldContainer[str]
    where: _containers.MessageMap[str, HeaderValue]
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., kinds: _Optional[_Iterable[str]] = ..., where: _Optional[_Mapping[str, HeaderValue]] = ...) -> None: ...

class ClaimResponse(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[QueueMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[QueueMessage, _Mapping]]] = ...) -> None: ...

class CommitRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CommitResponse(_message.Message):
    __slots__ = ("timestamp", "enqueued")
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    ENQUEUED_FIELD_NUMBER: _ClassVar[int]
    timestamp: int
    enqueued: _containers.RepeatedScalarFieldContainer[EnqueueOutcome]
    def __init__(self, timestamp: _Optional[int] = ..., enqueued: _Optional[_Iterable[_Union[EnqueueOutcome, str]]] = ...) -> None: ...

class NewTransactionIdRequest(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class NewTransactionIdResponse(_message.Message):
    __slots__ = ("transaction_id", "other_ids")
    TRANSACTION_ID_FIELD_NUMBER: _ClassVar[int]
    OTHER_IDS_FIELD_NUMBER: _ClassVar[int]
    transaction_id: bytes
    other_ids: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, transaction_id: _Optional[bytes] = ..., other_ids: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReceiveRequest(_message.Message):
    __slots__ = ("queue", "credit", "selection")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    SELECTION_FIELD_NUMBER: _ClassVar[int]
    queue: str
    credit: int
    selection: Selection
    def __init__(self, queue: _Optional[str] = ..., credit: _Optional[int] = ..., selection: _Optional[_Union[Selection, _Mapping]] = ...) -> None: ...

class QueueMessage(_message.Message):
    __slots__ = ("attempt", "id", "kind", "key", "payload", "headers", "priority", "group", "created_at", "epoch", "leased_until", "lease_seconds", "last_error")
    class HeadersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: HeaderValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[HeaderValue, _Mapping]] = ...) -> None: ...
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    HEADERS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LEASED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    LEASE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LAST_ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: bytes
    id: bytes
    kind: str
    key: bytes
    payload: bytes
    headers: _containers.MessageMap[str, HeaderValue]
    priority: int
    group: str
    created_at: int
    epoch: int
    leased_until: int
    lease_seconds: float
    last_error: str
    def __init__(self, attempt: _Optional[bytes] = ..., id: _Optional[bytes] = ..., kind: _Optional[str] = ..., key: _Optional[bytes] = ..., payload: _Optional[bytes] = ..., headers: _Optional[_Mapping[str, HeaderValue]] = ..., priority: _Optional[int] = ..., group: _Optional[str] = ..., created_at: _Optional[int] = ..., epoch: _Optional[int] = ..., leased_until: _Optional[int] = ..., lease_seconds: _Optional[float] = ..., last_error: _Optional[str] = ...) -> None: ...

class AcknowledgeRequest(_message.Message):
    __slots__ = ("queue", "attempts", "ids", "kind")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    queue: str
    attempts: _containers.RepeatedScalarFieldContainer[bytes]
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    kind: str
    def __init__(self, queue: _Optional[str] = ..., attempts: _Optional[_Iterable[bytes]] = ..., ids: _Optional[_Iterable[bytes]] = ..., kind: _Optional[str] = ...) -> None: ...

class AcknowledgeResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class RejectRequest(_message.Message):
    __slots__ = ("queue", "attempts", "ids", "kind", "delay_seconds", "dead", "reason", "uncounted")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    DELAY_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNCOUNTED_FIELD_NUMBER: _ClassVar[int]
    queue: str
    attempts: _containers.RepeatedScalarFieldContainer[bytes]
    ids: _containers.RepeatedScalarFieldContainer[bytes]
    kind: str
    delay_seconds: float
    dead: bool
    reason: str
    uncounted: bool
    def __init__(self, queue: _Optional[str] = ..., attempts: _Optional[_Iterable[bytes]] = ..., ids: _Optional[_Iterable[bytes]] = ..., kind: _Optional[str] = ..., delay_seconds: _Optional[float] = ..., dead: _Optional[bool] = ..., reason: _Optional[str] = ..., uncounted: _Optional[bool] = ...) -> None: ...

class RejectResponse(_message.Message):
    __slots__ = ("count",)
    COUNT_FIELD_NUMBER: _ClassVar[int]
    count: int
    def __init__(self, count: _Optional[int] = ...) -> None: ...

class ExtendRequest(_message.Message):
    __slots__ = ("queue", "attempt", "seconds")
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    queue: str
    attempt: bytes
    seconds: float
    def __init__(self, queue: _Optional[str] = ..., attempt: _Optional[bytes] = ..., seconds: _Optional[float] = ...) -> None: ...

class ExtendResponse(_message.Message):
    __slots__ = ("leased_until",)
    LEASED_UNTIL_FIELD_NUMBER: _ClassVar[int]
    leased_until: int
    def __init__(self, leased_until: _Optional[int] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("start", "end", "after")
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    start: bytes
    end: bytes
    after: int
    def __init__(self, start: _Optional[bytes] = ..., end: _Optional[bytes] = ..., after: _Optional[int] = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("changes", "after")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    after: int
    def __init__(self, changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., after: _Optional[int] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("key", "value", "timestamp")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    value: bytes
    timestamp: int
    def __init__(self, key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., timestamp: _Optional[int] = ...) -> None: ...

class ErrorDetail(_message.Message):
    __slots__ = ("type", "retryable", "nothing_happened", "retry_after_seconds")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    NOTHING_HAPPENED_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    type: str
    retryable: bool
    nothing_happened: bool
    retry_after_seconds: float
    def __init__(self, type: _Optional[str] = ..., retryable: _Optional[bool] = ..., nothing_happened: _Optional[bool] = ..., retry_after_seconds: _Optional[float] = ...) -> None: ...

class RpcStatus(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...
