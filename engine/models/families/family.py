"""A model family: everything that a Hugging Face config.json says, in Megatron's terms."""

from typing import Any, Protocol

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.families.deepseek_v3 import DeepseekV3, Glm4MoeLite
from cascade_rl.engine.models.families.glm4_moe import Glm4Moe
from cascade_rl.engine.models.families.llama import Llama
from cascade_rl.engine.models.families.nemotron_h import NemotronH
from cascade_rl.engine.models.families.qwen2 import Qwen2
from cascade_rl.engine.models.families.qwen3 import Qwen3
from cascade_rl.engine.models.families.qwen3_moe import Qwen3Moe
from cascade_rl.engine.models.families.qwen3_next import Qwen3Next
from cascade_rl.engine.models.hf_config import HfConfig
from cascade_rl.engine.models.name_map import NameMap


class Family(Protocol):
    """Pure functions of config.json. They raise UserError for what is not supported.

    pattern              one symbol per HybridModel layer: M Mamba-2, G gated delta net, * attention, + of a latent,
                         - MLP, E experts
    transformer_config   TransformerConfig fields that the model fixes; `activation_func` by its HF name
    model_kwargs         arguments of HybridModel: positions, tied head
    name_map             every parameter, and where its numbers are in the HF checkpoint
    """

    architecture: str

    def pattern(self, hf: HfConfig) -> str: ...

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]: ...

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]: ...

    def name_map(self, hf: HfConfig) -> NameMap: ...


KNOWN: tuple[Family, ...] = (
    NemotronH(),
    Qwen3(),
    Qwen3Moe(),
    Qwen3Next(),
    Qwen2(),
    Llama(),
    Glm4Moe(),
    DeepseekV3(),
    Glm4MoeLite(),
)
FAMILIES = {family.architecture: family for family in KNOWN}


def family_of(hf: HfConfig) -> Family:
    """The family of `architectures[0]`. Raises UserError for an unknown one; it names those that are known."""
    architecture = (hf.get("architectures") or ["none"])[0]
    if architecture.startswith("Gemma"):
        raise UserError(
            f"expected a model whose layers Cascade has, found {architecture}. Soft-capped logits, sliding windows and "
            "norms after attention and MLP are not built; without them the numbers would not be vLLM's. "
            f"Take a model of another family: {', '.join(FAMILIES)}"
        )
    if architecture.startswith("Qwen3_5"):
        raise UserError(
            f"expected a model whose checkpoint Cascade reads, found {architecture}. Qwen3-Next, whose layers it has, "
            "is built; Qwen3.5's tensors, its nested config.json and its image tower are not. "
            f"Take a model of another family: {', '.join(FAMILIES)}"
        )
    if architecture not in FAMILIES:
        raise UserError(f"expected an architecture among {', '.join(FAMILIES)}; config.json has {architecture}")
    return FAMILIES[architecture]
