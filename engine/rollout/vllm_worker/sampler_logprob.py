"""The engine's log-probs by the trainer's function: `fused_linear_logprob` of vLLM's own hidden states and head.

vLLM rounds logits to the dtype of the model and computes its own log-softmax. With one function of (hidden state,
head, token, temperature) on both sides, equal hidden states give equal log-probs. Any gap that is left between trainer
and engine is then a gap of hidden states. The RL experiment of pytorch/torchtitan does the same.

This relies on these internals of vLLM 0.32.0; `install` raises if one is missing:

- `LogitsProcessor.forward(lm_head, hidden_states)` runs before every log-prob, row for row, and `lm_head.weight` is
  the plain weight, even if the CPU build multiplies by a packed copy;
- model runner V1 (on a CPU) computes log-probs by `Sampler.gather_logprobs(scores, count, token_ids)`, those of prompts
  within `_get_prompt_logprobs_dict`;
- model runner V2 (on a GPU) computes them by `compute_topk_scores(scores, count, token_ids, ...)`, those of prompts
  within `PromptLogprobsWorker.compute_prompt_logprobs`.

It needs three settings of the engine. `logprobs_mode="processed_logits"`: vLLM computes no log-softmax, and a log-prob
from any other path would be a logit, which the probe of a refit refuses. `head_dtype="float32"`: tokens are sampled
from logits that are not rounded, so that the log-prob is that of the distribution that was sampled from.
`max_logprobs=-1`: a request may ask for all tokens of the vocabulary, and gets those that it was sampled from.

What top-k and top-p kept is read from the logits that vLLM sampled from and not computed again, because values alone do
not decide it at the border. On a CPU all tokens as large as the k-th stay, so that there may be more than top_k; of
equal ones at the border of top-p, the order of the sort decides which go. On a GPU a kernel decides, and keeps k.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from vllm.distributed import get_tp_group
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.v1.outputs import LogprobsTensors

from cascade_rl.kernels.fused_linear_logprob import LinearLogprob, fused_linear_logprob
from cascade_rl.kernels.kept_logprob import kept_logprob
from cascade_rl.kernels.parts.vocabulary import IGNORED


def install(model_runner: Any) -> None:
    """Makes `fused_linear_logprob` compute every log-prob of a worker, whose model must be loaded.

    Raises RuntimeError for another vLLM, ValueError for a head that is not supported.
    """
    head = HeadLogprob(_logits_processor(model_runner.get_model()))
    if hasattr(model_runner, "prompt_logprobs_worker"):
        _install_v2(model_runner, head)
    else:
        _install_v1(model_runner, head)


class HeadLogprob:
    """Log-probs of the rows that the head processed last."""

    def __init__(self, processor: LogitsProcessor):
        group = get_tp_group()
        self._tp_group = group.device_group if group.world_size > 1 else None
        self._vocab_size = processor.org_vocab_size
        self._scoring = False  # whether the rows score given tokens
        _wrap(processor, "forward", self._remembering)

    def of_given_tokens(self, function: Callable) -> Callable:
        """`function`, which scores prompts, without computing logits, which are [rows, 0]."""

        def score(*args: Any, **kwargs: Any) -> Any:
            self._scoring = True
            try:
                return function(*args, **kwargs)
            finally:
                self._scoring = False

        return score

    def gather(
        self, logits: Tensor, count: int, token_ids: Tensor, temperatures: Callable[[], Tensor | None]
    ) -> LogprobsTensors:
        """Log-probs of one token per row, [rows, 1 + kept], as vLLM's own function returns them.

        logits        [rows, vocab] after temperature, top-k and top-p, -inf for the tokens that these dropped
        count         number of further tokens wanted for each row: none, or all, which gives the ids of those that
                      were kept, and IGNORED after a row's last. The log-prob in each column is the chosen token's
        token_ids     int64 [rows]
        temperatures  of the rows if tokens are sampled, [rows], 0 for greedy; None if all are greedy
        """
        if count not in (0, self._vocab_size):
            raise ValueError(f"expected log-probs of the chosen tokens, or of all that were kept, found {count}")
        kept = _kept(logits) if count else token_ids.new_empty(len(token_ids), 0)
        logprobs = self._given(token_ids) if self._scoring else self._sampled(logits, token_ids, temperatures(), kept)
        ids = torch.cat([token_ids[:, None], kept], 1)
        ranks = torch.zeros_like(token_ids)  # would take a pass over all logits, and nobody reads them
        return LogprobsTensors(ids.int(), logprobs[:, None].expand(ids.shape), ranks)

    def _given(self, token_ids: Tensor) -> Tensor:
        return self._linear(token_ids, 1.0).logprob

    def _sampled(self, logits: Tensor, token_ids: Tensor, temperature: Tensor | None, kept: Tensor) -> Tensor:
        heat = 1.0 if temperature is None else temperature.where(temperature > 0, 1.0)
        outputs = self._linear(token_ids, heat, kept)
        if kept.shape[1]:
            return kept_logprob(outputs, token_ids, kept)
        dropped = logits.amin(1).isneginf()
        if not dropped.any():
            return outputs.logprob
        nucleus = outputs.logprob + outputs.log_sum_exp - logits.float().logsumexp(1)
        return nucleus.where(dropped, outputs.logprob)

    def _linear(
        self, token_ids: Tensor, temperature: Tensor | float, candidates: Tensor | None = None
    ) -> LinearLogprob:
        return fused_linear_logprob(
            self._hidden,
            self._lm_head.weight,
            token_ids,
            temperature,
            vocab_size=self._vocab_size,
            candidates=candidates,
            tp_group=self._tp_group,
        )

    def _remembering(self, forward: Callable) -> Callable:
        """The head's `forward`, which also keeps its rows for `gather`."""

        def logits(lm_head: Any, hidden_states: Tensor) -> Tensor:
            self._lm_head, self._hidden = lm_head, hidden_states
            if self._scoring:
                return hidden_states.new_empty(len(hidden_states), 0)
            return forward(lm_head, hidden_states)

        return logits


def _kept(logits: Tensor) -> Tensor:
    """Ids of the logits that are not -inf, the largest first, int64 [rows, most]; none for a row without -inf."""
    left = ~logits.isneginf()
    left &= ~left.all(1, keepdim=True)
    values, ids = logits.masked_fill(~left, -torch.inf).topk(int(left.sum(1).max()), 1)
    return ids.masked_fill(values.isneginf(), IGNORED)


def _logits_processor(model: nn.Module) -> LogitsProcessor:
    """The processor of a model whose logits are a matrix product and nothing more."""
    processors = [module for module in model.modules() if isinstance(module, LogitsProcessor)]
    if len(processors) != 1 or processors[0].scale != 1 or processors[0].soft_cap:
        raise ValueError(f"expected a model with one head, its logits neither scaled nor capped, found {processors}")
    return processors[0]


def _install_v1(model_runner: Any, head: HeadLogprob) -> None:
    def gather_logprobs(logits: Tensor, count: int, token_ids: Tensor) -> LogprobsTensors:
        return head.gather(logits, count, token_ids, lambda: model_runner.input_batch.sampling_metadata.temperature)

    _wrap(model_runner.sampler, "gather_logprobs", lambda _: gather_logprobs)
    _wrap(model_runner, "_get_prompt_logprobs_dict", head.of_given_tokens)


def _install_v2(model_runner: Any, head: HeadLogprob) -> None:
    from vllm.v1.worker.gpu.sample import prompt_logprob, sampler

    def compute_topk_scores(
        logits: Tensor,
        count: int,
        token_ids: Tensor,
        cu_num_logits: Any = None,
        *,
        expanded_idx_mapping: Tensor | None = None,
        **_: Any,
    ) -> LogprobsTensors:
        """expanded_idx_mapping [rows] is each row's request; only sampled rows have it."""
        return head.gather(logits, count, token_ids, lambda: states.temperature.gpu[expanded_idx_mapping])

    states = model_runner.sampler.sampling_states
    for module in (sampler, prompt_logprob):
        _wrap(module, "compute_topk_scores", lambda _: compute_topk_scores)
    _wrap(model_runner.prompt_logprobs_worker, "compute_prompt_logprobs", head.of_given_tokens)


def _wrap(owner: Any, name: str, wrapper: Callable[[Callable], Callable]) -> None:
    if not hasattr(owner, name):
        raise RuntimeError(
            f"expected {owner} to have {name!r}, as in vLLM 0.32.0: adapt {__name__} to the vLLM that is installed"
        )
    setattr(owner, name, wrapper(getattr(owner, name)))
