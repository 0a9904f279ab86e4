"""Runs a cascade on a Slurm cluster: one job per stage, submitted through NeMo-Run or plain sbatch. Torch-free."""
