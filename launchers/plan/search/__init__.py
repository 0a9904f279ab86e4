"""Settings near those of a stage, each planned: which of them fits where the stage does not, and which shares its GPUs
best between trainer and engines."""
