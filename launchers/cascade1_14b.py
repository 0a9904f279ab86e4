"""Nemotron-Cascade 1 as published: the 14B thinking model, on Qwen3-14B-Base.

    nemo-run launchers/cascade1_14b.py --cluster NAME
    cascade plan launchers/cascade1_14b.py --hardware b200

Stages and data are in rl_stages/recipes/cascade1_stages.py. The config.json of the base must allow the longest
sequence: set its max_position_embeddings to 61440. The rotary embeddings themselves have no maximum length.
"""

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.recipes.cascade1 import THINKING_14B
from cascade_rl.rl_stages.recipes.cascade1_stages import Size, cascade1

CASCADE = cascade1(
    Size(
        name="cascade1_14b",
        base=BaseModel(hf="models/Qwen3-14B-Base", published="qwen3_14b", chat_template="cascade1"),
        recipe=THINKING_14B,
        answer_tokens=THINKING_14B["code_rl"]["sampling"].max_new_tokens,
        sft=((5e-5, 22_000), (5e-5, 41_000)),
        h100=(64, 4, 4, 4),
        b200=(32, 2, 4, 1),
        kv_cache_gib=10,
    )
)

if __name__ == "__main__":
    launch(CASCADE)
