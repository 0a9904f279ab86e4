"""The parity certificate: how far transformers, Megatron and vLLM are from being one model, and where they differ.

Works without torch, because the launcher's process reads and prints it.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

WORST_TOKENS = 5
CONTEXT_TOKENS = 12

Sides = tuple[Sequence[np.ndarray], Sequence[np.ndarray]]
"""Two sides' log-probs of the same tokens, float32 [n - 1] of each sequence."""


@dataclass(frozen=True)
class Bounds:
    """logprob  largest |difference| of one token's log-prob, nats
    tme      largest mean of exp|difference|
    layer    largest |difference| of a token's hidden state, relative to its norm; only names a layer, fails nothing
    """

    logprob: float = 1e-4
    tme: float = 1.001
    layer: float = 1e-4


@dataclass(frozen=True)
class Gap:
    """Gap of two log-probs of the same tokens: largest and mean |difference|, mean exp|difference|. NaN if any is."""

    max: float
    mean: float
    tme: float


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
            if not gap.max <= self.bounds.logprob:
                yield f"{pair}: largest gap of a log-prob {gap.max:.1e}, expected at most {self.bounds.logprob:.0e}"
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


def gap_of(one: Sequence[np.ndarray], other: Sequence[np.ndarray]) -> Gap:
    """The gap between two sides, float32 [n - 1] of each sequence."""
    gaps = _gaps((one, other))
    return Gap(float(gaps.max()), float(gaps.mean()), float(np.exp(gaps).mean()))


def worst_tokens(
    compared: Mapping[str, Sides], ids: Sequence[Sequence[int]], decode: Callable[[Sequence[int]], str]
) -> list[WorstToken]:
    """The tokens with the largest gaps, each with the pair whose gap is largest there; NaN counts as the largest."""
    pairs = list(compared)
    gaps = np.stack([np.nan_to_num(_gaps(sides), nan=np.inf) for sides in compared.values()])  # [pairs, tokens]
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


def _gaps(sides: Sides) -> np.ndarray:
    """float64 [tokens of all sequences]"""
    return np.abs(np.concatenate(sides[0]).astype(np.float64) - np.concatenate(sides[1]))
