"""Start-up without garbage collection.

What importing torch, Megatron-Core and vLLM makes stays, in millions of objects. Looking through them time and again is
a quarter of the time that importing vLLM takes.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """What is made in the block is never looked through by the garbage collector, also afterwards."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
