"""The engine's process: one thread that reads commands, steps vLLM and sends finished samples.

    python -m cascade_rl.engine.rollout.server FD PARENT

FD is an inherited socket; the first message on it is a `Settings`. PARENT is the id of the process that started this
one. vLLM and torch are imported only after the environment is set.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from math import inf
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from cascade_rl.engine.core.parent_death import die_with_parent, end_soon_after_parent, outlive_parent
from cascade_rl.engine.core.rollouts import PART, Request, Scored
from cascade_rl.engine.core.uncollected import uncollected
from cascade_rl.engine.rollout.last_parts import LAST_PARTS_SECONDS, LastParts, leave
from cascade_rl.engine.rollout.protocol import (
    AskHealth,
    BufferWeights,
    Health,
    JoinRefit,
    Progress,
    Received,
    ReceiveWeights,
    Reply,
    Score,
    Settings,
    Sleep,
    Stall,
    Submit,
    UpdateWeights,
)
from cascade_rl.engine.rollout.sampled import Drawing, Rows, of_finished, of_running
from cascade_rl.engine.rollout.vllm_worker import vllm_cpu_patches

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.outputs import RequestOutput
    from vllm.v1.engine.llm_engine import LLMEngine

SCORE_PREFIX = "score/"
FREE_AT_START = 0.01  # of the card's memory
SIGNS_OF_LIFE = 4  # in the time after which a silent engine is replaced


class Server:
    """Steps the engine while there is work, and otherwise blocks on the connection."""

    def __init__(self, connection: Connection, settings: Settings):
        self._connection = connection
        self._deterministic = settings.config.deterministic
        with uncollected():
            arguments = _engine_arguments(settings)
            self._engine = _build_engine(arguments)
        self._engine.collective_rpc("use_trainer_logprob")
        self._engine.collective_rpc(vllm_cpu_patches.unlink_shared_memory)
        self._moe_layers: list[int] = []
        if arguments["enable_return_routed_experts"]:
            self._moe_layers = self._engine.collective_rpc("moe_layers")[0]
            vllm_cpu_patches.record_routes(self._engine)
        self._scores: dict[str, Scored] = {}
        self._asked: dict[str, Request] = {}
        self._version: int | None = None
        self._cached_since: dict[str, int] = {}  # the weight version of the oldest state that a sample may read
        self._asleep = False
        self._steps = 0
        self._stepped_s = 0.0
        self._generated_tokens = 0
        self._told_parts: dict[str, int] = {}  # tokens of each running sample that the trainer has
        self._unreceived: dict[str, Drawing] = {}  # turns that have ended, until the trainer says that it has them
        self._last_parts = settings.last_parts
        self._signs = Rhythm(settings.config.silence_limit_s / SIGNS_OF_LIFE)
        self._parts = Rhythm(inf if self._deterministic else settings.config.part_every_s)
        self._worked = 0

    def run(self) -> NoReturn:
        """Runs until the trainer is gone. Then leaves what it has drawn, and raises EOFError."""
        while True:
            try:
                while self._connection.poll(0.0 if self._has_work() else None):
                    self._handle(self._connection.recv())
                    self._choose_end()
            except Exception:  # between two steps: the trainer is gone, perhaps while it sent weights
                self._leave()
                raise
            self._step()

    def _choose_end(self) -> None:
        """With the trainer, at once, unless there is something to leave."""
        leaves = self._last_parts and (self._asked or self._unreceived)
        outlive_parent() if leaves else die_with_parent()

    def _leave(self) -> None:
        if self._last_parts:
            leave(self._last_parts, [*self._of_running(), *self._of_ended()])

    def _of_running(self) -> Iterator[LastParts]:
        for drawing in self._running():
            yield replace(drawing.request, begun=None), drawing.parts(len(drawing.sampled.token_ids))

    def _of_ended(self) -> Iterator[LastParts]:
        """All but the last token: who goes on draws that again, and finds the end of the turn."""
        for drawing in self._unreceived.values():
            if parts := drawing.parts(len(drawing.sampled.token_ids) - 1):
                yield replace(drawing.request, begun=None), parts

    def _has_work(self) -> bool:
        return self._engine.has_unfinished_requests()

    def _handle(self, command: Any) -> None:
        if self._asleep and isinstance(command, Submit | Score | UpdateWeights | ReceiveWeights):
            self._engine.wake_up()
            self._asleep = False
        if isinstance(command, Submit):
            if not self._has_work():
                self._parts.begin()
                if self._deterministic:
                    self._drop_caches()  # a prefix cached by an earlier batch has that batch's bits
            assert self._version is not None  # nothing is submitted before the first weights
            for request in command.requests:
                self._asked[request.id], self._cached_since[request.id] = request, self._version
                self._unreceived.pop(request.id, None)  # the turn before
                self._add(request.id, [*request.prompt_ids, *request.begun_ids], _sampling_params(request))
        elif isinstance(command, Received):
            self._unreceived.pop(command.request_id, None)
        else:
            self._connection.send(Reply(self._answer(command)))

    def _answer(self, command: Any) -> Any:
        match command:
            case Sleep():
                self._engine.sleep(level=1)
                self._asleep = True
            case UpdateWeights(image_path, version, keep_cache):
                return self._update_weights({"image_path": image_path}, version, keep_cache)
            case JoinRefit():
                self._engine.collective_rpc("init_weight_transfer_engine", kwargs={"init_info": asdict(command)})
            case BufferWeights(version, check):
                self._engine.collective_rpc("buffer_weights", args=(version, check))
            case ReceiveWeights(version, check, keep_cache):
                return self._update_weights({"version": version, "check": check}, version, keep_cache)
            case Score(sequences):
                return self._score(sequences)
            case AskHealth():
                return self._health()
            case _:
                raise TypeError(f"expected a command of {__package__}.protocol, found {command!r}")
        return None

    def _add(self, request_id: str, prompt_ids: Sequence[int], params: "SamplingParams") -> None:
        prompt = {"prompt_token_ids": list(prompt_ids), "cache_salt": str(self._version)}  # no prefix of older weights
        self._engine.add_request(request_id, prompt, params)

    def _step(self) -> None:
        began = time.monotonic()
        outputs = self._engine.step()
        self._steps += 1
        self._stepped_s += time.monotonic() - began
        for output in outputs:
            if output.request_id.startswith(SCORE_PREFIX):
                self._scores[output.request_id] = self._scored(output)
            else:
                self._finish(output)
        if self._signs.due():
            self._tell_progress()
        if self._parts.due():
            self._send_parts()

    def _tell_progress(self) -> None:
        """Steps in which nothing is computed, as where no request finds room for its keys, are none."""
        running = sum(len(sampled.token_ids) for _, sampled in of_running(self._engine).values())
        worked = self._generated_tokens + len(self._scores) + running
        if worked != self._worked:
            self._tell(Progress(self._steps))
        self._worked = worked

    def _send_parts(self) -> None:
        for drawing in self._running():
            name, count = drawing.request.id, len(drawing.sampled.token_ids)
            since = self._told_parts.get(name, 0)
            if count > since:
                self._tell(drawing.part(since, PART))
                self._told_parts[name] = count

    def _running(self) -> Iterator[Drawing]:
        for name, (own_id, sampled) in of_running(self._engine).items():
            if name in self._asked:
                rows = self._routes(partial(vllm_cpu_patches.running_routes, self._engine, own_id))
                yield Drawing(self._asked[name], sampled, rows, self._cached_since[name])

    def _finish(self, output: "RequestOutput") -> None:
        completion, sampled = output.outputs[0], of_finished(output)
        self._generated_tokens += len(sampled.token_ids)
        name, rows = output.request_id, self._routes(lambda: completion.routed_experts)
        drawing = Drawing(self._asked.pop(name), sampled, rows, self._cached_since.pop(name))
        self._told_parts.pop(name, None)
        if self._last_parts:
            self._unreceived[name] = drawing
        self._tell(drawing.part(0, completion.finish_reason))

    def _tell(self, message: Any) -> None:
        """A trainer that is gone is noticed when the next command is read, between two steps."""
        with suppress(ConnectionError):
            self._connection.send(message)

    def _scored(self, output: "RequestOutput") -> Scored:
        logprobs = np.asarray(output.prompt_logprobs.logprobs, np.float32)
        routes = self._routes(lambda: output.outputs[0].routed_experts)(0)
        return Scored(logprobs, None if routes is None else routes[: len(logprobs)])

    def _routes(self, recorded: Callable[[], np.ndarray]) -> Rows:
        """Of rows of all layers, those of the layers with experts."""
        if not self._moe_layers:
            return lambda _: None
        return lambda start: recorded()[start:, self._moe_layers].astype(np.int16)

    def _update_weights(self, update_info: dict[str, Any], version: int, keep_cache: bool) -> Stall:
        """Between two steps: samples that are running go on with the new weights."""
        began, running = time.monotonic(), self._engine.get_num_unfinished_requests()
        self._engine.collective_rpc("start_weight_update")
        self._engine.collective_rpc("update_weights", kwargs={"update_info": update_info})
        self._engine.collective_rpc("finish_weight_update")
        self._engine.engine_core.set_weight_version(str(version))
        self._version = version
        if not (keep_cache and running):
            self._drop_caches()
        seconds = time.monotonic() - began
        return Stall(running, seconds, seconds * self._steps / self._stepped_s if self._steps else 0.0)

    def _drop_caches(self) -> None:
        """Running requests are preempted: their keys, values and states are computed again."""
        if not self._engine.reset_prefix_cache(reset_running_requests=True):
            raise RuntimeError("expected vLLM to drop its prefix cache, found that it kept cached keys and values")
        if self._version is not None:
            self._cached_since = dict.fromkeys(self._cached_since, self._version)

    def _score(self, sequences: Sequence[Sequence[int]]) -> list[Scored]:
        ids = [f"{SCORE_PREFIX}{index}" for index in range(len(sequences))]
        for request_id, token_ids in zip(ids, sequences, strict=True):
            self._add(request_id, token_ids, _scoring_params())
        while len(self._scores) < len(ids):
            self._step()
        return [self._scores.pop(request_id) for request_id in ids]

    def _health(self) -> Health:
        unfinished = self._engine.get_num_unfinished_requests()
        return Health(self._version, unfinished, self._steps, self._generated_tokens)


class Rhythm:
    """Says every `seconds` that something is due."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.begin()

    def begin(self) -> None:
        self._last = time.monotonic()

    def due(self) -> bool:
        if found := time.monotonic() - self._last > self._seconds:
            self.begin()
        return found


def _engine_arguments(settings: Settings) -> dict[str, Any]:
    from vllm.engine.arg_utils import EngineArgs

    config = settings.config
    arguments = {
        "model": settings.model_dir,
        "load_format": "dummy",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "dtype": config.dtype,
        "seed": settings.seed,
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "kv_cache_memory_bytes": config.kv_cache_mib << 20,
        # The cache has its size; this share must be free at the start all the same, and the trainer is on the card.
        "gpu_memory_utilization": FREE_AT_START,
        "tensor_parallel_size": config.tensor,
        "enable_expert_parallel": config.expert_parallel,
        "distributed_executor_backend": "mp" if config.tensor > 1 else "uni",
        "enable_sleep_mode": config.sleep,
        # Needed by `sampler_logprob`.
        "logprobs_mode": "processed_logits",
        "max_logprobs": -1,
        "hf_overrides": {"head_dtype": "float32"},
        # A step in flight during a weight update would use old weights and be counted as new.
        "async_scheduling": False,
        "weight_transfer_config": {"backend": "cascade"},
        "worker_extension_cls": "cascade_rl.engine.rollout.vllm_worker.extension.WorkerExtension",
        "disable_log_stats": True,
    }
    model = EngineArgs(**arguments).create_model_config()
    routes = config.replay_routes and model.is_moe
    cached = config.keeps_prefixes(model.is_moe) and vllm_cpu_patches.caches_prefixes(model.is_hybrid, routes)
    # A trainer's states are float32. Qwen3-Next's would have the dtype of the model, and lose what each token adds.
    states = {"mamba_ssm_cache_dtype": "float32"} if model.is_hybrid else {}
    passed = config.vllm.given if config.vllm else {}
    return arguments | states | passed | {"enable_return_routed_experts": routes, "enable_prefix_caching": cached}


def _build_engine(arguments: dict[str, Any]) -> "LLMEngine":
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    return LLMEngine.from_engine_args(EngineArgs(**vllm_cpu_patches.supported(arguments)))


def _sampling_params(request: Request) -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    drawn = len(request.begun_ids)
    return SamplingParams(
        max_tokens=request.sampling.max_new_tokens - drawn,
        temperature=request.sampling.temperature,
        top_p=request.sampling.top_p,
        top_k=request.sampling.top_k,
        stop_token_ids=list(request.sampling.stop_token_ids),
        ignore_eos=True,
        seed=request.seed,
        logprobs=-1 if request.sampling.top_k else 0,  # -1: of all kept tokens
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={vllm_cpu_patches.DRAWN: drawn} if drawn else None,
    )


def _scoring_params() -> "SamplingParams":
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    return SamplingParams(
        max_tokens=1,
        temperature=0.0,
        prompt_logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def main() -> None:
    die_with_parent()
    end_soon_after_parent(LAST_PARTS_SECONDS)
    if os.getppid() != int(sys.argv[2]):
        sys.exit("the rank that started this engine ended before the engine could ask to end with it")
    vllm_cpu_patches.set_environment()
    connection = Connection(int(sys.argv[1]))
    try:
        server = Server(connection, connection.recv())
        signal.signal(signal.SIGTERM, lambda *_: None)  # to a whole job: the rank ends of it, and the engine sees that
        connection.send(Progress(0))  # it has started
        server.run()
    except (EOFError, ConnectionError):
        sys.exit("the trainer closed the connection")


if __name__ == "__main__":
    main()
