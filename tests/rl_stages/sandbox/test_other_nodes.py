"""Untrusted code on two nodes: the scores of one, on all cores of both; nothing is left when a node or worker goes."""

import json
import os
import random
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

import psutil
import pytest
import torch.distributed as dist

from cascade_rl.engine.backend.process_groups import join_ranks
from cascade_rl.engine.cluster.node import Node, ThisNode
from cascade_rl.engine.core.rollouts import Outcome
from cascade_rl.engine.rollout.nodes import nodes_of_job
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import Verdict
from cascade_rl.rl_stages.environments.environment import End
from cascade_rl.rl_stages.environments.swe_agent import SweAgent, SweEpisode
from cascade_rl.rl_stages.lessons import swe_agent as agent_prompts
from cascade_rl.rl_stages.lessons import swe_executed as executed_prompts
from cascade_rl.rl_stages.lessons.lesson import Lesson
from cascade_rl.rl_stages.rewards.verifiers.programs.code import CodeVerifier
from cascade_rl.rl_stages.rewards.verifiers.programs.code_rows import parse_row
from cascade_rl.rl_stages.rewards.verifiers.swe_executed import SweExecutedVerifier
from cascade_rl.rl_stages.sandbox import Sandbox, SandboxUnavailable, cores
from cascade_rl.rl_stages.sandbox.outside import folder
from cascade_rl.rl_stages.tasks.load_tasks import parse_task
from tests.gloo import run_ranks
from tests.living import runs
from tests.two_nodes import be_first_of_a_node
from tests.until import until

TESTS = {"inputs": ["1\n2\n", "5\n7\n"], "outputs": ["3\n", "12\n"]}
TASK = Task("sum", "code", (), parse_row({"verifier_metadata": {"unit_tests": TESTS}}))
EXPECTED = [1.0, 0.0] * 4


@dataclass
class Seen:
    """By rank 0: of this node and the other, what there was during the work and after it, and what was said."""

    during: list[int]
    after: list[int]
    said: list[Any]


def programs(round_: int) -> list[str]:
    """Half of them right, and none like another: equal ones are run once."""
    bodies = ["print(int(input()) + int(input()))", "print(3)"] * 4
    return [f"```\n{body}  # {round_} {i}\n```" for i, body in enumerate(bodies)]


def judged(verifier: CodeVerifier, round_: int) -> list[Verdict]:
    with ThreadPoolExecutor(verifier.concurrency) as threads:
        return list(threads.map(lambda text: verifier(TASK, text), programs(round_)))


def workers() -> list[int]:
    """Those that this process has started."""
    children = psutil.Process().children()
    return [child.pid for child in children if "sandbox.inside.box_worker" in " ".join(child.cmdline())]


def kill_workers() -> None:
    for pid in workers():
        os.kill(pid, signal.SIGKILL)


def folders() -> int:
    return sum(len(list(place.folder().iterdir())) for place in folder._places.values())


def on_two_nodes(work: Callable[[Node], Seen]) -> Seen | None:
    rank = be_first_of_a_node()
    join_ranks()
    with nodes_of_job(2) as nodes:
        seen = work(nodes[1]) if rank == 0 else None
        dist.barrier()
    return seen


def judge_twice(other: Node) -> Seen:
    with closing(CodeVerifier(slots=1, others=[other])) as verifier:
        assert verifier.concurrency == 1 + cores()
        first = judged(verifier, 1)
        during = [len(workers()), len(other.call(workers))]
        other.call(kill_workers)
        said = [first, judged(verifier, 2)]
    return Seen(during, [len(workers()), len(other.call(workers))], said)


def test_programs_run_on_the_cores_of_both_nodes_also_after_their_workers_were_killed() -> None:
    seen, _ = run_ranks(2, on_two_nodes, judge_twice)
    assert seen.during == [1, cores()]
    assert seen.after == [0, 0]
    assert [[verdict.score for verdict in verdicts] for verdicts in seen.said] == [EXPECTED, EXPECTED]


def repair(other: Node) -> Seen:
    rng = random.Random(0)
    chosen = list(islice(executed_prompts.lessons(), 0, 40, 10))
    tasks = [parse_task(lesson.row("swe_executed"), "row", "t") for lesson in chosen]
    with closing(SweExecutedVerifier(slots=1, others=[other])) as verifier, ThreadPoolExecutor(3) as threads:
        answers = [(task, str(lesson.right(rng))) for task, lesson in zip(tasks, chosen, strict=True)]
        answers += [(task, str(lesson.wrong(rng))) for task, lesson in zip(tasks, chosen, strict=True)]
        said = [verdict.score for verdict in threads.map(lambda one: verifier(*one), answers)]
        during = [len(workers()), len(other.call(workers))]
    return Seen(during, [folders(), other.call(folders)], said)


def test_repairs_are_tested_on_both_nodes() -> None:
    seen, _ = run_ranks(2, on_two_nodes, repair)
    assert seen.said == [1.0] * 4 + [0.0] * 4
    assert min(seen.during) > 0
    assert seen.after == [0, 0]


def turns(lesson: Lesson) -> list[str]:
    messages = lesson.right(random.Random(0))
    assert isinstance(messages, list)
    calls = [message["tool_calls"][0]["function"] for message in messages if "tool_calls" in message]
    return [f"<tool_call>{json.dumps(call)}</tool_call>" for call in calls]


def played(episode: SweEpisode, lesson: Lesson) -> Verdict:
    for turn in turns(lesson):
        seen = episode.step(turn)
        if isinstance(seen, End):
            return seen.verdict
    raise AssertionError("the last turn submits")


def act(other: Node) -> Seen:
    chosen = list(islice(agent_prompts.lessons(), 0, 60, 10))
    with closing(SweAgent([other])) as agent:
        assert agent.concurrency == 2 * cores()
        episodes = [agent.start(parse_task(lesson.row("swe_agentic"), "row", "t")) for lesson in chosen]
        during = [folders(), other.call(folders)]
        said = [played(episode, lesson).score for episode, lesson in zip(episodes, chosen, strict=True)]
        for episode in episodes:
            episode.close()
        after = [folders(), other.call(folders)]
        agent.start(parse_task(chosen[0].row("swe_agentic"), "row", "t"))  # is not closed
    return Seen(during, [*after, folders(), other.call(folders)], said)


def test_agents_work_on_both_nodes_each_where_its_folder_is() -> None:
    seen, _ = run_ranks(2, on_two_nodes, act)
    assert seen.said == [1.0] * 6
    assert sum(seen.during) == 6 and min(seen.during) > 0
    assert seen.after == [0, 0, 0, 0]


class NodeWithoutIsolation(ThisNode):
    host = "node7"

    def call(self, function: Callable[..., object], *arguments: object) -> NoReturn:
        raise SandboxUnavailable("expected a way to isolate untrusted code, found none")


def test_a_node_that_cannot_isolate_is_named() -> None:
    with pytest.raises(SandboxUnavailable, match="node node7: expected a way to isolate"):
        Sandbox(1, others=[NodeWithoutIsolation()])


def lose_the_node(verifier: CodeVerifier, other: Node) -> Seen:
    first = judged(verifier, 1)
    started = other.call(workers)
    os.kill(other.call(os.getpid), signal.SIGKILL)
    second = judged(verifier, 2)
    until(lambda: not any(map(runs, started)))
    return Seen([], [], [first, second])


def beside_a_lost_node() -> Seen | None:
    """Rank 1 is a parent that stays: its child is the first of the node, until it is killed."""
    rank = be_first_of_a_node()
    if rank == 1 and (child := os.fork()):
        os.waitpid(child, 0)
        return None
    join_ranks()
    with nodes_of_job(2) as nodes:
        if rank == 1:
            signal.pause()
        with closing(CodeVerifier(slots=1, others=nodes[1:])) as verifier:
            return lose_the_node(verifier, nodes[1])


def test_a_lost_node_costs_no_program_a_wrong_score() -> None:
    seen, _ = run_ranks(2, beside_a_lost_node)
    first, second = seen.said
    assert [verdict.score for verdict in first] == EXPECTED
    for verdict, expected in zip(second, EXPECTED, strict=True):
        assert verdict.score == expected or verdict.outcome is Outcome.INFRASTRUCTURE_FAILURE
    assert [verdict.score for verdict in second].count(None) < len(second)
