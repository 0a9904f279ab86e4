"""What processes of a job leave for each other at its store, pickled."""

import pickle
from typing import Any

from torch.distributed import Store


def put(store: Store, key: str, value: Any) -> None:
    store.set(key, pickle.dumps(value))  # type: ignore[arg-type]


def get(store: Store, key: str) -> Any:
    """Waits for what another process puts there, and returns it."""
    return pickle.loads(store.get(key))
