"""A cascade on a Slurm cluster: one job a stage, submitted through NeMo-Run or plain sbatch. Torch-free."""
