"""Whether the finished steps of a stage folder are those that the stage of today would have made.

Some settings are in a stage's hash although no weight depends on them: those in `FREE`. Those in `OF_THE_END` say which
step is the last one, and nothing of the steps before. With others a folder keeps its work.
"""

from collections.abc import Collection, Mapping
from typing import Any

from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.config.stage import Stage
from cascade_rl.rl_stages.core.hub import HUB
from cascade_rl.rl_stages.run.stage_graph import Identity, digest

JUDGE_SERVICE = ("url", "api_key_env", "deadline_seconds", "retries", "concurrency")
FREE = frozenset(
    {"token_budget", "tme_bound", "stale_gap_bound", "max_infrastructure_failures", "max_draws"}
    | {f"reward_model.{key}" for key in JUDGE_SERVICE}
)
STOP_RULES = frozenset({"stop_at_plateau", "stop_at_length_clip"})
VALIDATION = frozenset({"heldout", "validate_every"})  # of SFT
OF_THE_END = STOP_RULES | {"steps"}

Names = Mapping[str, Collection[str]]
"""By stage, and for the base: all hashes that mean its weights of today."""


def free_keys(stage: Stage) -> frozenset[str]:
    """The keys of `FREE` for this stage. Where SFT drops what is too long, the budget decides what is learned."""
    if not isinstance(stage, SftStage):
        return FREE
    return (FREE - {"token_budget"} if stage.overlong == "drop" else FREE) | VALIDATION


def same_settings(old: Identity, new: Identity, beside: Collection[str]) -> bool:
    """Whether the settings are equal, apart from the keys `beside`."""
    return digest(_without(old.settings, beside)) == digest(_without(new.settings, beside))


def same_inputs(old: Identity, new: Identity, parent: str, names: Names) -> bool:
    """Whether data, files and the weights that the stage reads are equal. `parent` is the name of its parent.

    A folder of before does not say which files it read, and knows data of the Hub by their name alone: they are taken
    for those of today."""
    models = {parent: old.parent, **old.teachers}
    return (
        {source: _today(source, old.data[source], new) for source in old.data} == new.data
        and (not old.files or old.files == new.files)
        and old.teachers.keys() == new.teachers.keys()
        and all(content in names[name] for name, content in models.items())
    )


def _today(source: str, content: str, new: Identity) -> str | None:
    return new.data.get(source) if source.startswith(HUB) and content == digest(source) else content


def until(step: int, identity: Identity) -> Identity:
    """What determined the first `step` steps: extensions that begin later did not."""
    extensions = [item for item in identity.settings.get("extensions", ()) if item["from_step"] < step]
    settings = {**identity.settings, "extensions": extensions}
    return Identity(settings, identity.data, identity.parent, identity.teachers, identity.files)


def can_end_elsewhere(stage: Stage) -> bool:
    """Whether more or fewer steps leave the learning rate of every step what it was."""
    return stage.optimizer.schedule == "constant" or stage.optimizer.schedule_steps is not None


def _without(settings: Mapping[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """`settings` without the `keys`, of which "a.b" is the key b of the node a."""
    inner = {name: {key.removeprefix(f"{name}.") for key in keys if key.startswith(f"{name}.")} for name in settings}
    return {
        name: _without(value, inner[name]) if inner[name] and isinstance(value, Mapping) else value
        for name, value in settings.items()
        if name not in keys
    }
