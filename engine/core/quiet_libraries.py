"""What libraries say of choices that are made on purpose is kept from the user."""

import logging
import warnings


def quiet_libraries() -> None:
    """Torch and Megatron warn, at import and once per layer, of choices that are made on purpose: no Transformer Engine
    on CPU, torch's optimizer, a synchronous checkpoint. Before they are imported, because some warn then."""
    warnings.simplefilter("ignore")
    for library in ("megatron.core", "torch.utils.cpp_extension"):
        logging.getLogger(library).setLevel(logging.ERROR)
