"""The documentation is true: its messages are the code's, its examples run, its links and keys exist."""

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.rollouts import Outcome, Sampling
from cascade_rl.engine.core.settings import OptimizerConfig, ParallelConfig, RolloutConfig
from cascade_rl.launchers.plan.cascade_plan import plan_cascade
from cascade_rl.launchers.plan.hardware import read_hardware
from cascade_rl.rl_stages.config.base import Evaluation
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.grpo_stage import GrpoStage
from cascade_rl.rl_stages.config.mopd_stage import MopdStage
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.tasks.domains import DOMAINS, Domain
from cascade_rl.rl_stages.tasks.load_tasks import parse_task

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SYMPTOMS = sorted((DOCS / "symptoms").glob("*.md"))
CODE = ("engine", "kernels", "rl_stages", "launchers", "moe", "distillation")
PAGES = [DOCS / "README.md", *DOCS.glob("adding_*.md"), DOCS / "glossary.md", DOCS / "parity.md", *SYMPTOMS]
KEYS = {
    "STAGE": (GrpoStage, SftStage, MopdStage, RewardModelStage),
    "rollout": (RolloutConfig,),
    "parallel": (ParallelConfig,),
    "evaluation": (Evaluation,),
    "STAGE.sampling": (Sampling,),
    "STAGE.optimizer": (OptimizerConfig,),
}


def example(page: str, language: str) -> str:
    """The page's first block of that language."""
    found = re.search(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def text_of_the_code() -> str:
    """All string literals as they are joined by the compiler, near enough: adjacent quotes removed."""
    sources = "".join(path.read_text() for folder in CODE for path in (ROOT / folder).rglob("*.py"))
    return re.sub(r'"\s*\n\s*f?"', "", sources)


@pytest.fixture(scope="module")
def code() -> str:
    return text_of_the_code()


# What the pages quote, without the numbers in it.
QUOTED = {
    "reward_flat": ["groups whose rewards are not all equal", "raise max_draws, or switch"],
    "reward_hacked": ["tie_rate", "reference_kl"],
    "routing_flip": ["reference_kl", "probe_gap", "routing_churn"],
    "tme_grows": [
        "mean of exp|log p_train - log p_rollout| is ", "mean of exp|log p_train - log p_rollout| of the probe is ",
        "expected sequences whose mean of exp|log p_train - log p_rollout| is at most ",
    ],
    "replay_fraction": ["of the experts that the sampler chose were replayed in training, expected all. Some samples"],
    "refit_refused": [
        "trainer and engine differ by ", "the engine does not sample from the weights that were sent",
        "expected vLLM's parameters to be those of the map", "would leave them as they are", " broke off: ",
    ],
    "engine_died": [
        "died", " with exit code ", "; starting it again",
        "made no token and sent nothing for ", "had not started after ",
    ],
    "out_of_memory": ["was killed by ", "raise token_budget or shorten the sequences"],
    "slow_step": [" has been in ", " samples pending: "],
    "infrastructure_failures": ["answers could not be scored, expected at most", "repair what failed and start"],
    "gate_closed": ["gate closed: ", "Change the stage, or what its gate allows"],
    "resume_refused": [
        "was made with another configuration: ", "another launcher (pid ", "no complete step was kept",
        "expected the stages that it builds on to be done, found ", ", and the data now give ",
        "expected the stages that have run to be what they were, found changes", " there, is ignored",
    ],
    "grader_not_proven": ["expected score 1 for the golden answer of an instance and 0", "graders proven (nodes: "],
    "wrong_format_rises": ["_fraction"],
    "length_explodes": ["expected samples to train on, found only ", "overlong=penalty, groups without"],
    "gradient_not_finite": ["gradient norm is "],
}  # fmt: skip


@pytest.mark.parametrize("page", SYMPTOMS, ids=lambda page: page.stem)
def test_a_symptom_is_told_in_the_words_of_the_code(page: Path, code: str) -> None:
    told = re.sub(r"\s+", " ", page.read_text())
    for words in QUOTED[page.stem]:
        assert words in code
        assert words.strip() in told


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_keys_exist(page: Path) -> None:
    for prefix, name in re.findall(
        r"`(STAGE\.(?:sampling|optimizer)|STAGE|rollout|parallel|evaluation)\.(\w+)", page.read_text()
    ):
        assert any(name in [field.name for field in fields(kind)] for kind in KEYS[prefix]), f"{prefix}.{name}"


def test_the_index_names_every_page() -> None:
    index = (DOCS / "README.md").read_text()
    for page in [*SYMPTOMS, *DOCS.glob("*.md")]:
        assert page.name == "README.md" or f"({page.relative_to(DOCS)})" in index, page.name


def test_the_verifier_of_the_docs_scores_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, Any] = {}
    exec(example("adding_a_verifier.md", "python"), made)
    domain = Domain("palindrome", made["parse_row"], made["PalindromeVerifier"])
    monkeypatch.setitem(DOMAINS, "palindrome", domain)
    row = json.loads(example("adding_a_verifier.md", "json"))
    task = parse_task(row, "docs:1", "docs:1")
    verifier = made["PalindromeVerifier"]()
    assert [verifier(task, text).score for text in ("level", "<think>a b</think>level", "hello", "noon")] == [
        1,
        1,
        0,
        0,
    ]
    assert verifier(task, "two words").outcome is Outcome.WRONG_FORMAT
    with pytest.raises(UserError, match="length: expected a whole number above 0, found 'five'"):
        parse_task(row | {"length": "five"}, "docs:1", "docs:1")


def test_the_stages_of_the_docs_make_a_cascade() -> None:
    made: dict[str, Any] = {"__name__": "docs"}
    exec(example("adding_a_stage.md", "python"), made)
    cascade = made["cascade"]
    assert isinstance(cascade, Cascade)
    assert cascade.parent(cascade.stage("mcqa_rl")) is cascade.stage("math_rl")
    assert cascade.stage("mcqa_rl").gate == {"math": 0.02}
    assert plan_cascade(cascade, *read_hardware("h100")).fits
