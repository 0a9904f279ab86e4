"""Nemotron-Cascade 1 as published: the 8B model that always thinks, on Qwen3-8B-Base.

    nemo-run launchers/cascade1_8b_thinking.py --cluster NAME
    cascade plan launchers/cascade1_8b_thinking.py --hardware b200

Stages and data are in rl_stages/recipes/cascade1_stages.py. SFT is that of the unified 8B model. The config.json of the
base must allow the longest sequence: set its max_position_embeddings to 49152. The rotary embeddings themselves have no
maximum length.
"""

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.recipes.cascade1 import THINKING_8B
from cascade_rl.rl_stages.recipes.cascade1_stages import Size, cascade1

CASCADE = cascade1(
    Size(
        name="cascade1_8b_thinking",
        base=BaseModel(hf="models/Qwen3-8B-Base", published="qwen3_8b", chat_template="cascade1"),
        recipe=THINKING_8B,
        answer_tokens=THINKING_8B["code_rl"]["sampling"].max_new_tokens,
        sft=((5e-5, 20_000), (2e-5, 32_000)),
        h100=(64, 4, 4, 2),
        b200=(32, 2, 4, 1),
        kv_cache_gib=8,
    )
)

if __name__ == "__main__":
    launch(CASCADE)
