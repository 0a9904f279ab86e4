"""Messages on a pipe: a JSON head and a body of bytes. This module also runs in the box."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Mapping
from typing import Any

Frame = tuple[dict[str, Any], bytes]
_LENGTHS = struct.Struct("<II")


class Malformed(Exception):
    """What should be a frame is none, or too long a one."""


def write_frame(descriptor: int, head: Mapping[str, Any], body: bytes = b"") -> None:
    text = json.dumps(head).encode()
    left = memoryview(_LENGTHS.pack(len(text), len(body)) + text + body)
    while left:
        left = left[os.write(descriptor, left) :]


def read_frame(descriptor: int) -> Frame:
    """Waits for a whole frame. Raises EOFError if the pipe ends before the frame does."""
    head, length = read_head(descriptor)
    return head, read_exactly(descriptor, length)


def read_head(descriptor: int) -> tuple[dict[str, Any], int]:
    """The head of a frame, and the length of its body, which stays in the pipe. Raises EOFError."""
    head, body = _LENGTHS.unpack(read_exactly(descriptor, _LENGTHS.size))
    return json.loads(read_exactly(descriptor, head)), body


def read_exactly(descriptor: int, count: int) -> bytes:
    chunks: list[bytes] = []
    while count:
        chunk = os.read(descriptor, min(count, 1 << 20))
        if not chunk:
            raise EOFError("the pipe ended within a frame")
        chunks.append(chunk)
        count -= len(chunk)
    return b"".join(chunks)


def missing(received: bytes, most_bytes: int) -> int:
    """How many more bytes the frame that begins with `received` has. Raises Malformed if it is longer than
    `most_bytes`."""
    if len(received) < _LENGTHS.size:
        return _LENGTHS.size - len(received)
    length = _LENGTHS.size + sum(_LENGTHS.unpack_from(received))
    if length > most_bytes:
        raise Malformed(f"a frame of {length} bytes, more than {most_bytes}")
    return length - len(received)


def parsed(frame: bytes) -> Frame:
    """A whole frame that nobody vouches for. Raises Malformed."""
    body = _LENGTHS.size + _LENGTHS.unpack_from(frame)[0]
    try:
        head = json.loads(frame[_LENGTHS.size : body])
    except (ValueError, RecursionError) as error:
        raise Malformed(f"a frame whose head is no JSON: {error}") from None
    if not isinstance(head, dict):
        raise Malformed("a frame whose head is no object")
    return head, frame[body:]
