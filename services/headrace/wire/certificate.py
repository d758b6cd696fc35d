"""Reads from a certificate how long it is valid: a few DER fields, so that a trainer needs no cryptography package. Pure."""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
_SEQUENCE, _UTC_TIME, _GENERALIZED_TIME, _VERSION = 0x30, 0x17, 0x18, 0xA0


# Of a life of 90 days a week, in which a person can act; of a short one the last quarter, when whoever renews has long begun.
_DUE_S = 7 * 86400.0
_DUE_SHARE = 0.25


def overdue(begins_s: float, ends_s: float, now_s: float) -> bool:
    """True where a certificate should have been renewed by now; the alert HeadraceCertificateExpires says the same."""
    return ends_s - now_s < min(_DUE_S, _DUE_SHARE * (ends_s - begins_s))


def validity(pem: bytes) -> tuple[float, float]:
    """(not before, not after) of the first certificate of a PEM file, seconds since 1970. Raises ValueError."""
    try:
        text = pem.decode("ascii", "replace")
        _, found, rest = text.partition(_BEGIN)
        body, end, _ = rest.partition(_END)
        if not (found and end):
            raise ValueError("there is no certificate in it")
        certificate = _inside(base64.b64decode(body), _SEQUENCE)
        fields = _items(_inside(certificate, _SEQUENCE))
        # version (optional), serial number, signature algorithm, issuer, validity
        number = 4 if fields[0][0] == _VERSION else 3
        begins, ends, *_ = _items(_checked(fields[number], _SEQUENCE))
        return _time(*begins), _time(*ends)
    except (IndexError, binascii.Error) as error:
        raise ValueError("it is no certificate") from error


def _take(data: bytes) -> tuple[int, bytes, bytes]:
    """(tag, content, what follows) of the first element."""
    tag, length, start = data[0], data[1], 2
    if length & 0x80:
        size = length & 0x7F
        length, start = int.from_bytes(data[2 : 2 + size], "big"), 2 + size
    if start + length > len(data):
        raise ValueError("it is cut off")
    return tag, data[start : start + length], data[start + length :]


def _items(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    while data:
        tag, content, data = _take(data)
        found.append((tag, content))
    return found


def _inside(data: bytes, tag: int) -> bytes:
    found, content, _ = _take(data)
    return _checked((found, content), tag)


def _checked(item: tuple[int, bytes], tag: int) -> bytes:
    if item[0] != tag:
        raise ValueError("it is no certificate")
    return item[1]


def _time(tag: int, content: bytes) -> float:
    formats = {_UTC_TIME: "%y%m%d%H%M%SZ", _GENERALIZED_TIME: "%Y%m%d%H%M%SZ"}
    if tag not in formats:
        raise ValueError("it has no time of validity")
    return datetime.strptime(content.decode("ascii", "replace"), formats[tag]).replace(tzinfo=UTC).timestamp()
