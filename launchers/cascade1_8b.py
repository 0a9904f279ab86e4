"""Nemotron-Cascade 1, the 8B model that both thinks and answers at once, as published, on Qwen3-8B-Base.

    nemo-run launchers/cascade1_8b.py --cluster NAME
    cascade plan launchers/cascade1_8b.py --hardware b200

Stages and data: rl_stages/recipes/cascade1_stages.py. The recipes also have the numbers of the 8B model that only
thinks. The base's
config.json must allow the longest sequence: set its max_position_embeddings to 53248, as its rotary embeddings have no
end of their own.
"""

from cascade_rl.launchers.cli.launch import launch
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.recipes.cascade1 import UNIFIED_8B
from cascade_rl.rl_stages.recipes.cascade1_stages import Size, cascade1

CASCADE = cascade1(
    Size(
        name="cascade1_8b",
        base=BaseModel(hf="models/Qwen3-8B-Base", published="qwen3_8b"),
        recipe=UNIFIED_8B,
        answer_tokens=UNIFIED_8B["code_rl"]["extensions"][-1].max_new_tokens,
        sft=((5e-5, 20_000), (2e-5, 32_000)),
        h100=(64, 4, 4, 2),
        b200=(32, 2, 4, 1),
        kv_cache_gib=8,
    )
)

if __name__ == "__main__":
    launch(CASCADE)
