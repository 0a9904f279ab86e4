"""The default environment variables of a rank, and those of a rank that runs alone."""

ENGINE_NODES = "CASCADE_ENGINE_NODES"  # tells ranks how many nodes of their job have engines and no rank

# `python -m` does not search the working folder: its `kernels/` is not the package that transformers looks for.
SAFE_PATH = {"PYTHONSAFEPATH": "1"}

RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # one order of sets in all ranks and runs
    **SAFE_PATH,
}

ALONE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},  # any free port: nobody else has to find it
}
