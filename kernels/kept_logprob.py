"""Log-prob of a token, renormalised over the ids that top-k and top-p kept, from `fused_linear_logprob`.

Sampler and trainer both call this function with the same ids. Otherwise the ratio of equal policies would not be 1: if
their kept sets differed, or if only one of them were normalised over its kept set.
"""

from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import LinearLogprob
from cascade_rl.kernels.parts.vocabulary import IGNORED

_LOW = -1e4  # instead of minus infinity, whose gradient is NaN


def kept_logprob(outputs: LinearLogprob, targets: Tensor, kept: Tensor) -> Tensor:
    """log p(target) - log sum of p over the kept ids, differentiable, [tokens] in the dtype of `outputs`.

    outputs  of `fused_linear_logprob` for these targets, with `kept` as candidates
    targets  int64 [tokens]; IGNORED gives 0
    kept     int64 [tokens, kept], the target among them, filled up with IGNORED. For a token without kept ids the
             log-prob is over the whole vocabulary
    """
    present = (kept != IGNORED) & (targets != IGNORED)[:, None]
    total = outputs.candidate_logprob.where(present, _LOW).logsumexp(1)
    return outputs.logprob - total.where(present.any(1), 0)
