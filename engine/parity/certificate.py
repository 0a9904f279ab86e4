"""The parity certificate: how far transformers, Megatron and vLLM are from being one model, and where they differ.

Works without torch, because the launcher's process reads and prints it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from cascade_rl.engine.sync.gap import Gap, Sides, gaps_of

WORST_TOKENS = 5
CONTEXT_TOKENS = 12


@dataclass(frozen=True)
class Bounds:
    """logprob  largest |difference| of one token's log-prob, nats; with `exact` False that of 99.9 % of the tokens
    tme      largest mean of exp|difference|
    layer    largest |difference| of a token's hidden state, relative to its norm; only names a layer, fails nothing
    mean     largest mean |difference|, nats; None: not bounded
    """

    logprob: float = 1e-4
    tme: float = 1.001
    layer: float = 1e-4
    mean: float | None = None
    exact: bool = True


ROUNDED = Bounds(logprob=0.5, tme=1.05, layer=0.1, mean=0.1, exact=False)
"""Where a side computes in bfloat16, as the recipes bound the probes of their stages. Not measured on a GPU."""


@dataclass(frozen=True)
class WorstToken:
    """One of the tokens with the largest gaps: its pair, its text, the text before it, its log-prob on both sides."""

    gap: float
    pair: str
    sequence: int
    position: int
    token: str
    context: str
    logprobs: tuple[float, float]


@dataclass(frozen=True)
class LayerGap:
    """Largest |Megatron - transformers| / |transformers| of any token's hidden state after a layer."""

    layer: str
    gap: float


@dataclass(frozen=True)
class Certificate:
    """layout, engine   the settings, by name; `engine` is None if vLLM was left out
    pairs            by "one/other", of those that were measured
    mean_logprob     Megatron's. A model that knows the language gives about -3, a random or badly converted one
                     -log(vocabulary size) or less, however well the three agree
    replay_fraction  share of vLLM's expert choices that Megatron used; None if vLLM was left out, and in SFT
    layers           in the order of the model; empty if transformers was left out
    """

    model: str
    layout: Mapping[str, object]
    engine: Mapping[str, object] | None
    tokens: int
    mean_logprob: float
    pairs: Mapping[str, Gap]
    replay_fraction: float | None
    worst: Sequence[WorstToken]
    bounds: Bounds
    versions: Mapping[str, str]
    layers: Sequence[LayerGap] = ()

    @property
    def first_difference(self) -> LayerGap | None:
        """The first layer whose hidden states differ by more than the bound."""
        return next((layer for layer in self.layers if not layer.gap <= self.bounds.layer), None)

    def plain(self) -> dict[str, object]:
        """Plain values for a JSON file, with the verdict. JSON has no NaN or infinity: both become None, and fail."""
        first = self.first_difference
        verdict = {"first_difference": first and asdict(first), "failures": list(self.failures())}
        return _strict(asdict(self) | verdict)

    def failures(self) -> Iterator[str]:
        """A sentence for each bound that is exceeded; none if the certificate holds."""
        for pair, gap in self.pairs.items():
            name, worst = gap.worst(self.bounds.exact)
            if not worst <= self.bounds.logprob:
                yield f"{pair}: {name} of a log-prob {worst:.1e}, expected at most {self.bounds.logprob:.0e}"
            if self.bounds.mean is not None and not gap.mean <= self.bounds.mean:
                yield f"{pair}: mean gap of a log-prob {gap.mean:.1e}, expected at most {self.bounds.mean:.0e}"
            if not gap.tme <= self.bounds.tme:
                yield f"{pair}: mean of exp|gap| {gap.tme:.6f}, expected at most {self.bounds.tme}"
        if self.replay_fraction is not None and self.replay_fraction != 1.0:
            yield f"{self.replay_fraction:.4f} of vLLM's experts were replayed in Megatron, expected all"


def _strict(value: Any) -> Any:
    """`value` with None in place of each number that is not finite."""
    if isinstance(value, Mapping):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def worst_tokens(
    compared: Mapping[str, Sides], ids: Sequence[Sequence[int]], decode: Callable[[Sequence[int]], str]
) -> list[WorstToken]:
    """The tokens with the largest gaps, each with the pair whose gap is largest there; NaN counts as the largest."""
    pairs = list(compared)
    gaps = np.stack([np.nan_to_num(gaps_of(sides), nan=np.inf) for sides in compared.values()])  # [pairs, tokens]
    places = [(row, place) for row, tokens in enumerate(ids) for place in range(1, len(tokens))]
    worst = np.argsort(-gaps.max(0), kind="stable")[:WORST_TOKENS]
    return [_worst(pairs[gaps[:, at].argmax()], places[at], compared, ids, decode) for at in worst]


def _worst(
    pair: str,
    place: tuple[int, int],
    compared: Mapping[str, Sides],
    ids: Sequence[Sequence[int]],
    decode: Callable[[Sequence[int]], str],
) -> WorstToken:
    row, position = place
    before = ids[row][max(position - CONTEXT_TOKENS, 0) : position]
    one, other = (float(side[row][position - 1]) for side in compared[pair])
    token = decode(ids[row][position : position + 1])
    return WorstToken(abs(one - other), pair, row, position, token, decode(before), (one, other))
