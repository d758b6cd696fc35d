"""Which errors of CUDA end a process's use of its GPU: all that follow fail alike, until the process is started anew."""

from __future__ import annotations

# Names as the driver (CUDA_ERROR_...) and the runtime (cudaError...) have them, without underscores and in small letters; and
# their words, which libraries give instead. After CUDA's documentation of cudaError: "the process must be terminated and
# relaunched" of most; an uncorrectable memory or link error, and `unknown`, which a GPU that fell off its bus gives, are told
# to be no better.
_NAMES = (
    "eccuncorrectable",
    "nvlinkuncorrectable",
    "contained",
    "illegaladdress",
    "launchtimeout",
    "contextisdestroyed",
    "assert",
    "hardwarestackerror",
    "illegalinstruction",
    "misalignedaddress",
    "invalidaddressspace",
    "invalidpc",
    "launchfailed",
    "launchfailure",
    "tensormemoryleak",
    "mpsclientterminated",
    "externaldevice",
    "unknown",
)
_CODES = tuple(f"cudaerror{name}" for name in _NAMES)
_WORDS = (
    "illegal memory access",
    "unspecified launch failure",
    "misaligned address",
    "an illegal instruction was encountered",
    "uncorrectable ecc error",
    "device-side assert",
    "the launch timed out and was terminated",
)


def loses_gpu(text: str) -> bool:
    """Whether an error's name or message, in a driver's, the runtime's or a library's words, is of that kind."""
    lower = text.lower()
    plain = lower.replace("_", "")
    return any(code in plain for code in _CODES) or any(words in lower for words in _WORDS)
