"""What a rank's environment has unless the user says otherwise, and that of a rank which is alone."""

RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # one order of sets in all ranks and runs
    "PYTHONSAFEPATH": "1",  # `kernels/` of the repository is not the package transformers seeks
}

ALONE = {
    **{"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    **{"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"},  # any free port: nobody else has to find it
}
