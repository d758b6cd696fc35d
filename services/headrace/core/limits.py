"""How large everything may be that comes from another process, a store or a data set. Pure: numbers and two checks.

Each has its reason. Whoever goes over one gets an error that names the limit; nothing is cut short in silence, but texts that
are only shown (log lines, transports). docs/security.md says whom each keeps out.
"""

from __future__ import annotations

from headrace.core.errors import HeadraceError, ProtocolMismatch

# --- names and texts --------------------------------------------------------------------------------------------------
# Job names, worker ids, nonces, incarnations: they become keys of the store, labels of metrics and names of files.
NAME_CHARS = 100
# What is only shown or compared: node, transport, cause, fingerprint, an error's reason. A fingerprint lists a dozen libraries.
TEXT_CHARS = 1024
# Addresses of data sets: presigned ones run to some 2,000 characters.
ADDRESS_CHARS = 4096
# host:port (a DNS name has at most 253 characters) and socket paths (the kernel allows 107 bytes).
HOST_PORT_CHARS = 300
SOCKET_PATH_BYTES = 107
# An error's text in a message of the data plane; all of a message must fit MESSAGE_BYTES.
ERROR_CHARS = 4096
# Trailing metadata of gRPC over 8 KiB is refused by its defaults, and the error would be lost with it.
STATUS_MESSAGE_CHARS, STATUS_DETAILS_CHARS, STATUS_ID_CHARS, STATUS_IDS = 2000, 500, 200, 16
# A bearer token: a JWT of an identity provider has 1 to 3 kB. All that one call shows, while one is replaced by another: gRPC
# refuses metadata over 8 KiB by its defaults.
TOKEN_CHARS, TOKENS_CHARS = 4096, 7168

# --- control plane (gRPC to the coordinator, and its answers) -----------------------------------------------------------
# The largest honest request is a heartbeat that holds lanes of hundreds of jobs: 6144 lanes take 100 kB, a session 2 kB.
REQUEST_BYTES = 4 << 20
# The largest honest answer is a heartbeat's with all leases, or a lane table of thousands of workers (200 bytes each).
ANSWER_BYTES = 32 << 20
# Calls at a time on one connection: a rank has three, a worker one; a proxy may bundle many.
STREAMS_A_CONNECTION = 1000
# Ranks of a job: far above any cluster; a session's records are read each second.
WORLD = 65_536
# Lanes of a job: design section 5.
LANES = 6144
# Attempts, cursors and counts: what Redis' scripts and JSON count exactly.
COUNT_BOUND = 2**53
# A job's JSON: 32 operations and 4 kB of address are far less.
SPEC_CHARS = 64 << 10
OPS = 32
BATCH_SIZE = 65_536
# Indexes that a rank may be ahead. The window of a session is bounded in bytes besides.
WINDOW = 65_536
# One report of a rank: it sends what came up within a second, the rest with the next.
BAD_SAMPLES_A_REPORT, WAIT_CAUSES, TROUBLES = 1000, 64, 64
# One heartbeat: operations that an engine has; jobs that a worker serves, lags in or cannot open.
ENGINE_OPS, JOBS_A_WORKER = 256, 1000
# Kept of a job, with where and why; the rest is counted.
BAD_SAMPLES_A_JOB = 10_000
# Manifests being read at a time by a coordinator: one that answers nothing keeps its place for minutes. Callers try again.
MANIFEST_READS = 64

# --- admin HTTP ---------------------------------------------------------------------------------------------------------
# The admin API takes no bodies; a little is read and thrown away, so that a mistaken client hears its answer.
HTTP_BODY_BYTES = 64 << 10
HTTP_QUERY_BYTES = 2048
# Prometheus, probes and some people; more are refused until others leave.
HTTP_CONNECTIONS = 200
# From connecting, or from one answer, to the next request whole; and from there to the last byte of its answer taken.
HTTP_REQUEST_S, HTTP_RESPONSE_S = 10.0, 60.0
# A connection to a gRPC port that has not got as far as HTTP/2, or that makes no call.
GRPC_HANDSHAKE_S, GRPC_IDLE_S = 10.0, 600.0

# --- data plane -----------------------------------------------------------------------------------------------------------
# One message on a Unix socket, or one of gRPC but a chunk: a HELLO may list WINDOW indexes in a few bytes each.
MESSAGE_BYTES = 256 << 10
# A chunk of a batch: both ends pay some 0.2 ms a message, and from 8 MiB on its copies leave the caches.
CHUNK_BYTES = 4 << 20
HAVE_INDEXES = WINDOW
# Descriptors with one message: WELCOME brings one. Room for more, so that surplus ones arrive and can be closed.
DESCRIPTORS = 8
# A slab: 1 TiB is more memory than a machine has, and keeps sums far from 2^63.
SLAB_BYTES = 1 << 40

# --- data sets ------------------------------------------------------------------------------------------------------------
# A manifest has some 300 bytes a shard. It is read whole, by the coordinator too.
MANIFEST_BYTES = 512 << 20
SHARDS = 1_000_000
# What numpy's int64 holds, with room for sums.
SAMPLES = 2**53
KEY_BYTES = 4096
# JSON labels above that are data, not labels. They take room in every slot.
LABEL_BYTES = 1 << 20
CLASSES = 1_000_000
# Multi-hot rows have a byte a class.
MULTI_CLASSES = 65_536
# One encoded image. An uncompressed TIFF of 100 megapixels in 16-bit RGBA takes 800 MB.
IMAGE_BYTES = 1 << 30
# A PAX header or a long name in a tar; more is not a tar.
TAR_EXTENSION_BYTES = 1 << 20
# A shard's index is read whole below this, else in blocks; an index has some 60 bytes a sample.
INDEX_BYTES = 1 << 40
# The class list and the list of excluded keys that `headrace index` takes.
LIST_BYTES = 256 << 20


def at_most(found: int, limit: int, what: str, error: type[HeadraceError] = ProtocolMismatch, **ids: str | int) -> None:
    """Raise `error` that names the limit if `found` is over it."""
    if found > limit:
        raise error(f"{what}: {found}; at most {limit} are taken", limit=limit, **ids)


def text(
    value: str, what: str, limit: int = TEXT_CHARS, error: type[HeadraceError] = ProtocolMismatch, **ids: str | int
) -> str:
    """The text itself. Raises `error` where it is over the limit, or has half of a surrogate pair, which no UTF-8 has."""
    at_most(len(value), limit, f"characters in {what}", error, **ids)
    if not value.isascii() and any("\ud800" <= char <= "\udfff" for char in value):
        raise error(f"{what} is no text that UTF-8 can hold", **ids)
    return value
