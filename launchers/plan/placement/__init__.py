"""The same GPUs for a stage's trainer and engines in turn, or some for each at the same time. Reading order:

pace   how long a step takes, by who works and who waits
split  the best of the ways to share the GPUs between trainer and engines
"""
