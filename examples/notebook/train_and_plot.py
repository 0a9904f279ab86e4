# %% [markdown]
# # Fine-tune a model, look at its curve, ask it something

# %%
import json
from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from cascade_rl.engine.core.settings import OptimizerConfig
from cascade_rl.launchers.cli.launch import STAGE_COMMAND
from cascade_rl.launchers.local.run_local import run_cascade
from cascade_rl.launchers.report.curve import curve_svg
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.sft_stage import SftStage
from cascade_rl.rl_stages.run.run_folder import RunFolder
from cascade_rl.rl_stages.run.upgrade.kept_folders import refuse

# %% [markdown]
# Demonstrations, of which one in eight is kept for the validation loss.

# %%
rows = [{"prompt": f"What is {a} + {b}?", "completion": str(a + b)} for a in range(1, 13) for b in range(1, 13)]
for name, part in (("validation", rows[::8]), ("train", [row for i, row in enumerate(rows) if i % 8])):
    Path(f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))

# %%
# A two-layer model with random weights. Yours: BaseModel(hf="FOLDER").
size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "vocab_size": 512}
heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 256}
others = {
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e4,
    "attention_bias": False,
    "torch_dtype": "float32",
}
kind = {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True}
base = BaseModel(hf_config={**kind, **size, **heads, **others, "initializer_range": 0.02})

# %%
stage = SftStage(
    name="sft",
    domain="sums",
    data=("train.jsonl",),
    heldout=("validation.jsonl",),
    validate_every=5,
    steps=60,
    sequences_per_step=32,
    token_budget=1024,
    optimizer=OptimizerConfig(lr=3e-3),
    checkpoint_every=20,
)
cascade = Cascade(name="notebook", base=base, stages=(stage,))

# %%
assert run_cascade(cascade, Path("runs"), STAGE_COMMAND, cascade.stages, refuse) == 0

# %%
folder = RunFolder.open(Path("runs/notebook")).stage("sft")
losses = {row["step"]: row["validation_loss"] for row in folder.metrics.rows() if "validation_loss" in row}


# %%
class Picture:
    def __init__(self, svg):
        self.svg = svg

    def _repr_svg_(self):  # what a notebook shows
        return self.svg


picture = Picture(curve_svg("training loss", [row["loss"] for row in folder.metrics.rows() if "loss" in row]))
Path("loss.svg").write_text(picture.svg)
picture  # noqa: B018 (a notebook shows the last expression of a cell)

# %%
tokenizer, model = (kind.from_pretrained(folder.export) for kind in (AutoTokenizer, AutoModelForCausalLM))
asked = [{"role": "user", "content": "What is 3 + 4?"}]
ids = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = tokenizer.decode(model.generate(**ids, max_new_tokens=8, do_sample=False)[0, ids["input_ids"].shape[1] :])
print(f"validation loss {losses[0]:.2f} -> {losses[stage.steps]:.2f}; 3 + 4 = {answer}")
