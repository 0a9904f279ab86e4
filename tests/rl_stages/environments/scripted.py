"""A rollout client whose server says what a script says, and an environment that answers what a script answers."""

import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from cascade_rl.engine.core.rollouts import Request, Rollout, Sampling
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.engine.rollout import servers
from cascade_rl.engine.rollout.client import EngineDied, RolloutEngine
from cascade_rl.engine.rollout.protocol import Reply, Settings, Submit
from cascade_rl.engine.rollout.server_process import Arrivals
from cascade_rl.engine.sync.sampler import Batch
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.data.tokenizer import encode_prompt, train_tokenizer
from cascade_rl.rl_stages.environments.environment import End, Environment, Observation
from cascade_rl.rl_stages.scoring.episodes import Episodes
from cascade_rl.rl_stages.tasks.domains import DOMAINS, Domain

QUESTION = {"role": "user", "content": "How many cups are left?"}
TOKENIZER = train_tokenizer([[QUESTION, {"role": "tool", "content": "books, two cups and three books"}]])
TASK = Task("task", "scripted", (QUESTION,), {})
LIMIT = 400
Say = Callable[[str, int], str]


class ScriptedServer:
    """Stands for EngineProcess: draws at once `say(sample id, turn)`; dies where that is "DIE"."""

    say: Say
    requests: list[Request]
    starts = 0
    stuck = False

    def __init__(self, _settings: Settings, index: int, log_path: Path, arrivals: Arrivals, *_node: Any):
        self.index, self.log_path, self.arrivals = index, log_path, arrivals
        self.version: int | None = None
        self.alive = True
        ScriptedServer.starts += 1

    def send(self, message: Any) -> bool:
        for request in message.requests if self.alive and isinstance(message, Submit) else ():
            self._draw(request)
        return self.alive

    def _draw(self, request: Request) -> None:
        turn = list(request.prompt_ids).count(TOKENIZER.eos_token_id) // 2
        self.requests.append(request)
        text = type(self).say(request.id, turn)
        if text == "DIE":
            self.alive = False
            self.arrivals.put((self, None))  # type: ignore[arg-type]
        elif self.alive:
            self.arrivals.put((self, drawn(request, text)))  # type: ignore[arg-type]

    def reply(self) -> Reply:
        return Reply(None)

    def received(self, request_id: str) -> None: ...

    def kill(self) -> None:
        self.alive = False

    def obituary(self, pending_ids: tuple[str, ...]) -> EngineDied:
        return EngineDied(-9, pending_ids, self.log_path, "")


def said(text: str) -> list[int]:
    """Ids of the words; of a text that is spelled, of its letters, which encoding it would not give."""
    spelled = text.startswith("spell:")
    return TOKENIZER.convert_tokens_to_ids(list(text[6:])) if spelled else TOKENIZER.encode(text)


def drawn(request: Request, text: str) -> Rollout:
    """`text` and the stop token, cut at the request's limit; log-prob -k and routes k at the k-th id of the whole."""
    wanted = [*said(text), TOKENIZER.eos_token_id]
    ids = np.array(wanted[: request.sampling.max_new_tokens])
    start = len(request.prompt_ids)
    places = np.arange(start, start + len(ids), dtype=np.float32)
    routes = np.full((start + len(ids) - 1, 1, 1), start, np.int16)  # says which turn computed a position
    finish = "stop" if len(ids) == len(wanted) else "length"
    return Rollout(request.id, np.array(request.prompt_ids), ids, -places, routes, ((0, 0),), finish)


class ScriptedEnvironment:
    """`answer(text of the turn)` is shown, as one output or several, or raised, or, where it is a float, the score at
    the end."""

    concurrency, step_seconds = 2, 300.0

    def __init__(self, answer: Callable[[str], str | tuple[str, ...] | float]) -> None:
        self.answer = answer
        self.open = 0
        self.lock = threading.Lock()

    def start(self, task: Task) -> "ScriptedEpisode":
        with self.lock:
            self.open += 1
        return ScriptedEpisode(self)

    def close(self) -> None:
        self.open -= 1000  # no episode may be closed after it


class ScriptedEpisode:
    def __init__(self, environment: ScriptedEnvironment) -> None:
        self.environment = environment

    def step(self, text: str) -> Observation | End:
        answer = self.environment.answer(text)
        if isinstance(answer, float):
            return End(Verdict.scored(answer))
        return Observation.of_tools(*([answer] if isinstance(answer, str) else answer))

    def close(self) -> None:
        with self.environment.lock:
            self.environment.open -= 1


class Play:
    """Draws samples of the scripted domain through the client, the sampler and the environment loop as they are."""

    def __init__(
        self,
        monkeypatch: Any,
        folder: Path,
        environment: Environment,
        say: Say,
        task: Task = TASK,
        limit: int = LIMIT,
    ) -> None:
        self.task, self.limit = task, limit
        monkeypatch.setattr(servers, "EngineProcess", ScriptedServer)
        monkeypatch.setattr(ScriptedServer, "say", staticmethod(say), raising=False)
        monkeypatch.setattr(ScriptedServer, "requests", [], raising=False)
        monkeypatch.setattr(ScriptedServer, "starts", 0)
        scripted = Domain("scripted", lambda row: {}, None, environment=lambda: environment)
        monkeypatch.setitem(DOMAINS, "scripted", scripted)
        (folder / "config.json").write_text(f'{{"vocab_size": {len(TOKENIZER)}}}')
        self.engine = RolloutEngine(folder, RolloutConfig(max_model_len=limit), seed=0, log_path=folder / "log")
        self.engine.update_weights("image", 0)

    def __call__(self, ids: Iterable[str], sampling: Sampling) -> dict[str, Rollout]:
        prompt = tuple(encode_prompt(TOKENIZER, self.task.messages))
        sampling = replace(sampling, max_total_tokens=self.limit)
        requests = [Request(name, prompt, sampling, seed=seed) for seed, name in enumerate(ids)]
        with Episodes(TOKENIZER) as episodes:
            episodes.begin(self.task, requests)
            batch = Batch(self.engine, requests, episodes.follow)
            while not batch.collect():
                self.engine.update_weights("image", 0)
        return batch.rollouts
