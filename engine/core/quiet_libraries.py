"""Silences known, harmless warnings of libraries."""

import logging
import warnings


def quiet_libraries() -> None:
    """Silences torch and Megatron. They warn about choices that are made on purpose here: no Transformer Engine on CPU,
    torch's optimizer, a synchronous checkpoint. Call this before importing them, because some warn at import."""
    warnings.simplefilter("ignore")
    for library in ("megatron.core", "torch.utils.cpp_extension"):
        logging.getLogger(library).setLevel(logging.ERROR)
