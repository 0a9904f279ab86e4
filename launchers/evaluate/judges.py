"""The judge of an evaluation: a model behind a server, for domains that compare answers by their meaning."""

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import RolloutConfig
from cascade_rl.rl_stages.config.reward_model import RewardModel
from cascade_rl.rl_stages.core.task import Task
from cascade_rl.rl_stages.core.verdict import GroupVerifier, Verifier
from cascade_rl.rl_stages.scoring.judge import MakeVerifier
from cascade_rl.rl_stages.tasks.domains import domain_named

RANKS = "rlhf"
"""Its judge compares the answers to one prompt, which says nothing of two models."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    url = "of an OpenAI-compatible server, such as http://judge:8000/v1, whose model judges free answers and repairs"
    parser.add_argument("--judge-url", metavar="URL", help=url)
    parser.add_argument("--judge-model", metavar="NAME", help="the name by which that server knows its model")
    parser.add_argument("--judge-key-env", metavar="VARIABLE", help="environment variable that holds the server's key")


def judge_of(options: argparse.Namespace) -> RewardModel | None:
    """Raises UserError for half a judge."""
    url, model = options.judge_url, options.judge_model
    if (url is None) != (model is None):
        given, missing = ("--judge-url", "--judge-model") if url else ("--judge-model", "--judge-url")
        raise UserError(f"expected {missing} with {given}; found none: add it")
    if url is None:
        return None
    return RewardModel(kind="server", url=url, model=model, api_key_env=options.judge_key_env)


def check_judged(tasks: Iterable[Task], judge: RewardModel | None) -> None:
    """Raises UserError for a task whose answers nobody here can score."""
    for task in tasks:
        if domain_named(task.domain).needs_judge(task.metadata):
            if task.domain == RANKS:
                raise UserError(
                    f"{task.id}: expected answers that are scored one by one; found a row of {RANKS} without rules, "
                    "whose judge compares the answers to one prompt: leave it out, or give it instruction_id_list"
                )
            if judge is None:
                raise UserError(
                    f"{task.id}: expected a judge, which scores free answers of {task.domain} by their meaning; found "
                    "none: name one with --judge-url and --judge-model"
                )


def judged_domains(tasks: Iterable[Task]) -> set[str]:
    """Those whose answers a judge scores if there is one."""
    named = {task.domain for task in tasks} - {RANKS}
    return {name for name in named if domain_named(name).judged}


def makers(domains: Iterable[str], judge: RewardModel | None) -> Mapping[str, MakeVerifier]:
    """Of the verifiers that ask the judge."""
    return {name: partial(_verifier, name, judge) for name in domains} if judge else {}


def _verifier(domain: str, judge: RewardModel) -> Verifier | GroupVerifier:
    from cascade_rl.rl_stages.rewards.reward_models.open_judge import open_judge

    make = domain_named(domain).judged
    assert make
    return make(open_judge(judge, None, RolloutConfig(), Path()), judge, 1)
