"""What a rank's environment has unless the user says otherwise."""

RANK_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",  # one order of sets in all ranks and runs
    "PYTHONSAFEPATH": "1",  # `kernels/` of the repository is not the package transformers seeks
}
