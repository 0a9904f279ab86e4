"""Which domains a stage scores by running untrusted code, and where a domain's rows are."""

from collections.abc import Sequence
from itertools import chain

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.source import GENERATE, parse_sources
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.data.rows import HUB
from cascade_rl.rl_stages.rewards.adapters import ADAPTERS
from cascade_rl.rl_stages.tasks.domains import domain_named, is_third_party


def executed_domains(cascade: Cascade, stages: Sequence[Stage]) -> list[str]:
    """The domains that these stages train on or evaluate, and whose answers are run."""
    trained = chain.from_iterable(stage.trained_domains for stage in stages if isinstance(stage, OnPolicyStage))
    names = dict.fromkeys((*cascade.evaluation.domains, *trained))
    return [name for name in names if domain_named(name).exemplars]


def third_party_rewards(stage: OnPolicyStage) -> list[str]:
    """The rewards of others that the launcher lets the rows of a stage name."""
    return sorted(filter(is_third_party, stage.trained_domains))


def prove_rewards(stages: Sequence[Stage]) -> None:
    """Imports the rewards of others that the stages name. Raises UserError with the words of one that cannot be."""
    rewards = chain.from_iterable(third_party_rewards(stage) for stage in stages if isinstance(stage, OnPolicyStage))
    for name in dict.fromkeys(rewards):
        kind, _, target = name.partition(":")
        if prove := ADAPTERS[kind].prove:
            prove(target)


def local_readers(stages: Sequence[Stage]) -> dict[str, Stage]:
    """Each path of data that is a file or a folder, with the first of the stages that reads it."""
    readers: dict[str, Stage] = {}
    for stage in stages:
        for source in parse_sources(stage.data):
            if not source.path.startswith((GENERATE, HUB)):
                readers.setdefault(source.path, stage)
    return readers


def sources_of(domain: str, stages: Sequence[Stage]) -> list[str]:
    """Paths of the sources of the stages that train on the domain, or its generator if none does."""
    trained = [stage for stage in stages if isinstance(stage, OnPolicyStage) and domain in stage.trained_domains]
    paths = dict.fromkeys(source.path for stage in trained for source in parse_sources(stage.data))
    return list(paths) or [f"{GENERATE}{domain}"]
