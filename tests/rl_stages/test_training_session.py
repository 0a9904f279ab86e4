"""What every stage has, whatever its kind."""

from dataclasses import replace
from pathlib import Path

from transformers import AutoTokenizer

from cascade_rl.launchers.stage.run_stage import run_stage
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.reward_model_stage import RewardModelStage
from cascade_rl.rl_stages.data.chat_templates import NAMED
from cascade_rl.rl_stages.run.run_folder import RunFolder
from tests.gloo import run_ranks
from tests.rl_stages.tiny_cascade import CASCADE

STAGE = RewardModelStage(
    name="rewards", domain="rlhf", data=("generate:rlhf",), steps=1, pairs_per_step=2, token_budget=2048
)


def test_every_export_has_the_chat_template_that_the_launcher_names(tmp_path: Path) -> None:
    """One stage begins with the run's own base, the next with a folder that has another template."""
    for number, template in enumerate(("cascade2", "cascade1")):
        base = (
            replace(CASCADE.base, chat_template=template)
            if number == 0
            else BaseModel(hf=str(tmp_path / "run0/base"), chat_template=template)
        )
        cascade = replace(CASCADE, base=base, stages=(STAGE,))
        with RunFolder.claim(tmp_path / f"run{number}", cascade) as (run, _):
            assert run_ranks(1, run_stage, run, "rewards") == [0]
            assert AutoTokenizer.from_pretrained(run.stage("rewards").export).chat_template == NAMED[template]
    assert AutoTokenizer.from_pretrained(tmp_path / "run0/base").chat_template == NAMED["cascade2"]
