"""Rollouts: vLLM in a process of its own beside the training ranks.

`client.RolloutEngine` is what the trainer holds; everything that imports vLLM runs in the server's process.
"""
