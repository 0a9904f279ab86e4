"""Rollouts: vLLM in a process of its own, next to the training ranks.

The trainer holds a `client.RolloutEngine`. Everything that imports vLLM runs in the server's process.
"""
