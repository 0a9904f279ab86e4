"""Which domains a stage scores by running untrusted code, and where a domain's rows are."""

from collections.abc import Sequence
from itertools import chain

from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.source import GENERATE, parse_sources
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.core.hub import HUB
from cascade_rl.rl_stages.rewards.adapters import ADAPTERS
from cascade_rl.rl_stages.tasks.domains import domain_named
from cascade_rl.rl_stages.tasks.row_form import ANY, RowForm


def executed_domains(cascade: Cascade, stages: Sequence[Stage]) -> list[str]:
    """The domains that these stages train on or evaluate, and whose answers are run."""
    trained = chain.from_iterable(stage.trained_domains for stage in stages if isinstance(stage, OnPolicyStage))
    names = dict.fromkeys((*cascade.evaluation.domains, *trained))
    return [name for name in names if domain_named(name).exemplars]


def prove_rewards(stages: Sequence[Stage]) -> None:
    """Imports the rewards of others that the stages name. Raises UserError with the words of one that cannot be."""
    for name in dict.fromkeys(chain.from_iterable(RowForm.of(stage).rewards or () for stage in stages)):
        kind, _, target = name.partition(":")
        domain_named(name)
        if kind in ADAPTERS and (prove := ADAPTERS[kind].prove):
            prove(target)


def local_readers(stages: Sequence[Stage]) -> dict[str, Stage]:
    """Each path of data that is a file or a folder, with the first of the stages that reads it."""
    readers: dict[str, Stage] = {}
    for stage in stages:
        for source in (*parse_sources(stage.data), *parse_sources(stage.heldout)):
            if not source.path.startswith((GENERATE, HUB)):
                readers.setdefault(source.path, stage)
    return readers


def heldout_sources(domain: str, cascade: Cascade) -> tuple[dict[str, RowForm], float]:
    """Where the held-out prompts of the domain are, and which share of the prompts there they are: all, if stages that
    train on it name `heldout` rows."""
    trained = [stage for stage in cascade.stages if _trains_on(stage, domain)]
    own: dict[str, RowForm] = {}
    for stage in trained:
        for source in stage.heldout:
            own.setdefault(source, RowForm.of(stage))
    if own:
        return own, 1.0
    return sources_of(domain, cascade.stages), cascade.evaluation.heldout_fraction


def sources_of(domain: str, stages: Sequence[Stage]) -> dict[str, RowForm]:
    """Paths of the sources of the stages that train on the domain, or its generator if none does, each with the form
    of its rows in the first of these stages."""
    trained = [stage for stage in stages if _trains_on(stage, domain)]
    forms: dict[str, RowForm] = {}
    for stage in trained:
        for source in parse_sources(stage.data):
            forms.setdefault(source.path, RowForm.of(stage))
    return forms or {f"{GENERATE}{domain}": ANY}


def _trains_on(stage: Stage, domain: str) -> bool:
    return isinstance(stage, OnPolicyStage) and domain in stage.trained_domains
