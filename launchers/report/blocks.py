"""Compressed blocks inside the page: gzip in base64. The browser unpacks a block when it needs it."""

import base64
import gzip
import json
from typing import Any

import numpy as np


def block(name: str, content: bytes) -> str:
    """A script element that the browser keeps as text and does not run. The same content gives the same bytes."""
    packed = base64.b64encode(gzip.compress(content, 4, mtime=0)).decode()
    return f'<script type="text/plain" id="{name}">{packed}</script>\n'


def json_block(name: str, value: Any) -> str:
    """Raises ValueError for NaN and infinity, which JSON does not allow."""
    return block(name, json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode())


def planes(values: np.ndarray) -> bytes:
    """The first bytes of all values, then the second bytes, and so on. Similar bytes side by side compress well."""
    little = np.ascontiguousarray(values, values.dtype.newbyteorder("<"))
    return little.view(np.uint8).reshape(len(little), values.itemsize).T.tobytes()
