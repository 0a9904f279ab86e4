"""The objective of policy optimisation, as data. Without torch, because it also checks a stage's configuration."""

from dataclasses import dataclass
from typing import Literal, get_args

Surrogate = Literal["reinforce", "clip", "cispo", "gspo"]
Importance = Literal["truncated", "masked", "off"]
KlEstimator = Literal["k1", "k2", "k3"]


@dataclass(frozen=True)
class PolicyObjective:
    """The loss of each loss token: share (-w S + kl_coefficient KL). sg[] stops the gradient. The share is the token's
    weight in the mean over all loss tokens.

    surrogate     S, with A the advantage and rho = exp(log p - old log p), the ratio to the policy before the batch's
                  first update:
                  "reinforce"  A log p; for one update per batch, so that rho is 1
                  "clip"       min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A) (PPO, arXiv 1707.06347, Eq. 7)
                  "cispo"      sg[clip(rho, 1 - clip_low, 1 + clip_high)] A log p (MiniMax-M1, arXiv 2506.13585, Eq. 4)
                  "gspo"       "clip" with the rho of the sequence, exp of its mean log ratio, and each token's own
                               gradient (GSPO-token, arXiv 2507.18071, Eq. 13-17)
    dual_clip     c > 1: S of "clip" and "gspo" is at least c A where A < 0 (arXiv 1912.09729); None: no such bound
    importance    w = sg[v], where v = exp(old log p - rollout log p) is the ratio between trainer and sampler; with
                  "reinforce", v = exp(log p - rollout log p):
                  "truncated"  w is at most importance_high
                  "masked"     w is 0 outside [importance_low, importance_high] (IcePop)
                  "off"        w is 1
    kl_estimator  KL(policy || reference), with d = reference log p - log p: "k1" -d, "k2" d^2 / 2,
                  "k3" exp(d) - 1 - d (joschu.net/blog/kl-approx.html). In expectation the gradient of k2 is that of the
                  KL, and that of k1 is 0

    Raises ValueError, with the name of the key, for an unknown name or a value out of range.
    """

    surrogate: Surrogate = "reinforce"
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None
    importance: Importance = "truncated"
    importance_low: float = 0.5
    importance_high: float = 2.0
    kl_estimator: KlEstimator = "k3"
    kl_coefficient: float = 0.0

    @property
    def clips(self) -> bool:
        return self.surrogate != "reinforce"

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the values per token that the loss reads in addition to log p."""
        return (
            "advantage",
            "share",
            *["old_logprob"] * self.clips,
            *["rollout_logprob"] * (self.importance != "off"),
            *["reference_logprob"] * (self.kl_coefficient > 0),
        )

    def __post_init__(self) -> None:
        for name, known in (("surrogate", Surrogate), ("importance", Importance), ("kl_estimator", KlEstimator)):
            self._require(name, getattr(self, name) in get_args(known), f"one of {', '.join(get_args(known))}")
        for name in ("clip_low", "importance_low"):
            self._require(name, 0 <= getattr(self, name) <= 1, "a value in [0, 1]")
        for name in ("clip_high", "kl_coefficient"):
            self._require(name, getattr(self, name) >= 0, "0 or more")
        self._require("importance_high", self.importance_high >= 1, "1 or more")
        if self.dual_clip is not None:
            self._require("dual_clip", self.dual_clip > 1, "more than 1")
            self._require("dual_clip", self.surrogate in ("clip", "gspo"), "none unless the surrogate is clip or gspo")

    def _require(self, name: str, holds: bool, expected: str) -> None:
        if not holds:
            raise ValueError(f"{name}: expected {expected}, found {getattr(self, name)!r}")
