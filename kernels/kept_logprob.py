"""Log-prob of a token given that it is one of those that top-k and top-p kept, from `fused_linear_logprob`.

Sampler and trainer take it by this function of the same ids: a ratio of two policies whose kept sets differ, or of one
over its kept set and one over the whole vocabulary, is not 1 where the policies are equal.
"""

from torch import Tensor

from cascade_rl.kernels.fused_linear_logprob import LinearLogprob
from cascade_rl.kernels.parts.vocabulary import IGNORED

_LOW = -1e4  # stands in for minus infinity, whose gradient is NaN


def kept_logprob(outputs: LinearLogprob, targets: Tensor, kept: Tensor) -> Tensor:
    """log p(target) - log sum of p over the kept ids, differentiable, [tokens] in the dtype of `outputs`.

    outputs  of the targets, with `kept` as candidates
    targets  int64 [tokens]; IGNORED gives 0
    kept     int64 [tokens, kept], the target among them; IGNORED behind a token's last. A token that has none keeps the
             whole vocabulary
    """
    present = (kept != IGNORED) & (targets != IGNORED)[:, None]
    total = outputs.candidate_logprob.where(present, _LOW).logsumexp(1)
    return outputs.logprob - total.where(present.any(1), 0)
