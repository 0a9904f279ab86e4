"""Assigns requests to engines."""

from collections.abc import Sequence

from cascade_rl.engine.core.rollouts import Request


def place(requests: Sequence[Request], loads: Sequence[int]) -> list[int]:
    """The engine of each request, if engine i already has `loads[i]` tokens to process.

    Requests with the same prompt go to one engine, whose prefix cache then holds the prompt once. Prompts are
    assigned in turn, those with the most tokens first, to the engine with the smallest load. The result depends on the
    arguments alone.
    """
    costs: dict[tuple[int, ...], int] = {}
    for request in requests:
        costs[request.prompt_ids] = costs.get(request.prompt_ids, 0) + tokens(request)
    totals, engines = list(loads), dict[tuple[int, ...], int]()
    for prompt in sorted(costs, key=costs.__getitem__, reverse=True):
        engines[prompt] = totals.index(min(totals))
        totals[engines[prompt]] += costs[prompt]
    return [engines[request.prompt_ids] for request in requests]


def tokens(request: Request) -> int:
    """The most tokens that a request can take."""
    return len(request.prompt_ids) + request.sampling.max_new_tokens
