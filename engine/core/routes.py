"""In which dtype the experts that a sampler chose travel: they are most of a batch. Torch-free."""

import numpy as np


def routes_dtype(largest: int) -> np.dtype:
    """The smallest dtype of routes whose largest expert is `largest`: uint8, or the sampler's int16."""
    return np.dtype(np.uint8 if largest <= np.iinfo(np.uint8).max else np.int16)


def narrowed(routes: np.ndarray) -> np.ndarray:
    """The routes, int16 [...], in the smallest dtype."""
    return routes.astype(routes_dtype(int(routes.max(initial=0))), copy=False)
