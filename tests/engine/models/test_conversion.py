"""Import and export against transformers: logits, every exported tensor, errors of a wrong checkpoint."""

import json
from pathlib import Path

import pytest
import torch
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import gather_from_sequence_parallel_region
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PretrainedConfig

from cascade_rl.engine.backend.process_groups import initialize_distributed
from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.engine.models.build import build_model, padded_vocab, staged_pattern
from cascade_rl.engine.models.conversion import export_hf, load_hf
from cascade_rl.engine.models.head import head_weight
from cascade_rl.engine.models.hf_config import read_config
from cascade_rl.engine.models.name_map import equal_ranges
from tests.engine.models import tiny
from tests.gloo import run_ranks

TOKENS = 24
ONE = ParallelConfig()
TP2_EP2 = ParallelConfig(tensor=2, expert=2, sequence=True)
TP2 = ParallelConfig(tensor=2, sequence=True)
PP2 = ParallelConfig(pipeline=2)
CUTS = {
    "nemotron_h": TP2_EP2,
    "qwen3_moe": TP2_EP2,
    "qwen3_next": TP2_EP2,
    "qwen3": TP2,
    "qwen2": TP2,
    "llama": TP2,
    "glm4_moe": TP2_EP2,
    "deepseek_v3": TP2_EP2,
}
CASES = [
    (family, world, parallel) for family, cut in CUTS.items() for world, parallel in ((1, ONE), (2, cut), (2, PP2))
]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, torch.Tensor]]:
    """Per family: the folder that transformers saved, and the logits [tokens, vocabulary] it computes."""
    made = {}
    for name, config in tiny.FAMILIES.items():
        folder = tmp_path_factory.mktemp(name)
        model = tiny.save(config(), folder)
        with torch.no_grad():
            made[name] = folder, model(_tokens()).logits[0]
    return made


def _tokens() -> torch.Tensor:
    return torch.randint(0, tiny.VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(3))


def _logits(model) -> torch.Tensor | None:
    """Logits [tokens, vocabulary] on the last pipeline stage: hidden states times head weight."""

    def step(_, model):
        return model(_tokens(), torch.arange(TOKENS)[None], None), lambda hidden: (hidden.sum(), hidden)

    outputs = get_forward_backward_func()(
        forward_step_func=step,
        data_iterator=None,
        model=model.eval(),
        num_microbatches=1,
        seq_length=TOKENS,
        micro_batch_size=1,
        forward_only=True,
    )
    if not model.post_process:
        return None
    rows = outputs[0].squeeze(0)
    if model.config.sequence_parallel:
        rows = gather_from_sequence_parallel_region(rows)
    local = rows @ head_weight(model).T
    group = parallel_state.get_tensor_model_parallel_group()
    shares = [torch.empty_like(local) for _ in range(group.size())]
    torch.distributed.all_gather(shares, local.contiguous(), group=group)
    return torch.cat(shares, -1)[:, : tiny.VOCABULARY]


@torch.no_grad()
def _round_trip(folder: Path, parallel: ParallelConfig, export: Path) -> torch.Tensor | None:
    initialize_distributed(parallel, seed=1)
    hf = read_config(folder)
    model = build_model(hf, parallel, seed=5)
    load_hf(model, folder)
    export_hf(model, hf, export)
    return _logits(model)


def _assert_round_trip(
    checkpoint: tuple[Path, torch.Tensor], world: int, parallel: ParallelConfig, export: Path
) -> None:
    folder, expected = checkpoint
    logits = [found for found in run_ranks(world, _round_trip, folder, parallel, export) if found is not None]
    for found in logits:
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    original, exported = load_file(folder / "model.safetensors"), load_file(export / "model.safetensors")
    assert exported.keys() == original.keys()
    assert [name for name in original if not torch.equal(original[name], exported[name])] == []
    assert read_config(export) == read_config(folder)


@pytest.mark.parametrize(("family", "world", "parallel"), CASES)
def test_logits_are_those_of_transformers_and_export_is_bit_for_bit(
    checkpoints: dict, family: str, world: int, parallel: ParallelConfig, tmp_path: Path
) -> None:
    _assert_round_trip(checkpoints[family], world, parallel, tmp_path / "export")


@pytest.mark.parametrize(
    ("family", "parallel"),
    [
        ("nemotron_h", ParallelConfig(tensor=2, pipeline=2, expert=2, sequence=True)),
        ("qwen3_moe", ParallelConfig(tensor=2, expert=2, expert_tensor=2, sequence=True)),
        ("qwen3", ParallelConfig(tensor=4, sequence=True)),
        ("llama", ParallelConfig(tensor=2, pipeline=2)),
    ],
    ids=["everything", "cut experts", "fewer key-value heads than ranks", "tied head on another stage"],
)
def test_four_ranks(checkpoints: dict, family: str, parallel: ParallelConfig, tmp_path: Path) -> None:
    _assert_round_trip(checkpoints[family], 4, parallel, tmp_path / "export")


def test_a_bfloat16_export_keeps_the_router_bias_in_float32(checkpoints: dict, tmp_path: Path) -> None:
    folder, _ = checkpoints["nemotron_h"]
    export = tmp_path / "export"

    def convert() -> None:
        initialize_distributed(ONE, seed=1)
        hf = read_config(folder)
        model = build_model(hf, ONE, seed=5)
        load_hf(model, folder)
        export_hf(model, hf | {"dtype": "bfloat16"}, export)

    run_ranks(1, convert)
    original, exported = load_file(folder / "model.safetensors"), load_file(export / "model.safetensors")
    for name, tensor in original.items():
        dtype = torch.float32 if name.endswith("e_score_correction_bias") else torch.bfloat16
        assert exported[name].dtype == dtype
        assert torch.equal(exported[name], tensor.to(dtype))


def test_an_export_is_a_folder_that_transformers_loads(checkpoints: dict, tmp_path: Path) -> None:
    folder, expected = checkpoints["qwen3_moe"]
    (folder / "tokenizer.json").write_text("{}")
    (folder / "chat_template.jinja").write_text("of the folder")
    export = tmp_path / "runs" / "export"
    (export.parent / "export.partial").mkdir(parents=True)  # of a run that was killed

    def convert() -> None:
        initialize_distributed(ONE, seed=1)
        hf = read_config(folder)
        model = build_model(hf, ONE, seed=5)
        load_hf(model, folder)
        export_hf(model, hf, export, tokenizer_from=folder)
        assert (export / "chat_template.jinja").read_text() == "of the folder"
        export_hf(model, hf, export, tokenizer_from=folder, chat_template="of the launcher")  # replaces the first

    run_ranks(1, convert)
    with torch.no_grad():
        logits = AutoModelForCausalLM.from_pretrained(export)(_tokens()).logits[0]
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-6)
    assert {path.name for path in export.iterdir()} >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert (export / "chat_template.jinja").read_text() == "of the launcher"
    assert [path.name for path in export.parent.iterdir()] == ["export"]


PLAIN = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}


@pytest.mark.long
@pytest.mark.parametrize("parallel", [TP2_EP2, PP2])
@pytest.mark.parametrize(
    "config",
    [tiny.deepseek_v3(q_lora_rank=None, **PLAIN), tiny.glm4_moe_lite(**PLAIN)],
    ids=["Moonlight: queries without a latent", "GLM-4.7-Flash"],
)
def test_other_models_with_latents(config: PretrainedConfig, parallel: ParallelConfig, tmp_path: Path) -> None:
    model = tiny.save(config, tmp_path / "model")
    with torch.no_grad():
        expected = model(_tokens()).logits[0]
    _assert_round_trip((tmp_path / "model", expected), 2, parallel, tmp_path / "export")


def _trained_export(folder: Path, export: Path) -> None:
    """The export after an update of the model's weights."""
    initialize_distributed(ONE, seed=1)
    hf = read_config(folder)
    model = build_model(hf, ONE, seed=5)
    load_hf(model, folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    export_hf(model, hf, export, beside_from=folder)


def test_heads_that_predict_further_tokens_pass_through_a_stage_bit_for_bit(checkpoints: dict, tmp_path: Path) -> None:
    """As in the checkpoints of DeepSeek-V3 and GLM-4.5, where they are the layers after the last."""
    folder, _ = checkpoints["glm4_moe"]
    heads = {
        "model.layers.3.eh_proj.weight": torch.randn(64, 128).bfloat16(),
        "model.layers.3.mlp.gate.e_score_correction_bias": torch.randn(8),
    }
    save_file(load_file(folder / "model.safetensors") | heads, tmp_path / "model.safetensors")
    config = read_config(folder)
    (tmp_path / "config.json").write_text(json.dumps(config | {"num_nextn_predict_layers": 1}))
    run_ranks(1, _trained_export, tmp_path, tmp_path / "export")
    original, exported = (load_file(path / "model.safetensors") for path in (tmp_path, tmp_path / "export"))
    assert exported.keys() == original.keys()
    assert {name for name in original if torch.equal(original[name], exported[name])} >= heads.keys()
    assert {name: exported[name].dtype for name in heads} == {name: head.dtype for name, head in heads.items()}
    assert not torch.equal(original["model.norm.weight"], exported["model.norm.weight"])
    assert read_config(tmp_path / "export")["num_nextn_predict_layers"] == 1

    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"extra: model\.layers\.3\.eh_proj\.weight"):
        run_ranks(1, _trained_export, tmp_path, tmp_path / "export")


def _weights_after_failed_load(folder: Path) -> tuple[str, bool]:
    """The error's message, and whether the model was left untouched."""
    initialize_distributed(ONE, seed=1)
    model = build_model(read_config(folder), ONE, seed=5)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items() if torch.is_tensor(tensor)}
    with pytest.raises(UserError) as error:
        load_hf(model, folder)
    after = model.state_dict()
    return str(error.value), all(torch.equal(tensor, after[name]) for name, tensor in before.items())


def test_wrong_tensors_are_all_named_before_anything_is_loaded(checkpoints: dict, tmp_path: Path) -> None:
    folder, _ = checkpoints["nemotron_h"]
    tensors = load_file(folder / "model.safetensors")
    tensors["backbone.layers.9.norm.weight"] = tensors.pop("backbone.layers.1.mixer.gate.weight")
    tensors["backbone.norm_f.weight"] = torch.ones(63)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((folder / "config.json").read_text())
    [(message, untouched)] = run_ranks(1, _weights_after_failed_load, tmp_path)
    assert "missing: backbone.layers.1.mixer.gate.weight" in message
    assert "extra: backbone.layers.9.norm.weight" in message
    assert "misshapen: backbone.norm_f.weight (expected (64,), found (63,))" in message
    assert untouched


def test_a_tied_head_may_be_there_and_an_untied_one_may_not_be_missing(checkpoints: dict, tmp_path: Path) -> None:
    folder, expected = checkpoints["llama"]
    tensors = load_file(folder / "model.safetensors")
    save_file(
        tensors | {"lm_head.weight": tensors["model.embed_tokens.weight"].clone()},
        tmp_path / "model.safetensors",
    )
    config = read_config(folder)
    (tmp_path / "config.json").write_text(json.dumps(config))
    [logits] = run_ranks(1, _round_trip, tmp_path, ONE, tmp_path / "export")
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-5)

    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    with pytest.raises(UserError, match=r"missing: lm_head\.weight"):
        run_ranks(1, _round_trip, tmp_path, ONE, tmp_path / "export")


def _load_into(folder: Path, built_from: dict) -> None:
    initialize_distributed(ONE, seed=1)
    load_hf(build_model(built_from, ONE, seed=5), folder)


def test_a_checkpoint_of_another_model_is_a_user_error(checkpoints: dict) -> None:
    folder, _ = checkpoints["qwen3"]
    with pytest.raises(UserError, match=r"differ in decoder\.layers\.1\.mlp\.linear_fc1\.weight"):
        run_ranks(1, _load_into, folder, read_config(folder) | {"intermediate_size": 48})


def _build(hf: dict, parallel: ParallelConfig) -> None:
    initialize_distributed(parallel, seed=1)
    build_model(hf, parallel, seed=5)


def test_a_layout_that_does_not_fit_is_a_user_error(checkpoints: dict) -> None:
    hf = read_config(checkpoints["qwen3"][0]) | {"num_attention_heads": 3, "num_key_value_heads": 3}
    with pytest.raises(UserError, match=r"divide the 3 .*q_proj\.weight.*change `tensor`"):
        run_ranks(2, _build, hf, ParallelConfig(tensor=2))
    with pytest.raises(UserError, match="set `sequence`"):
        run_ranks(2, _build, read_config(checkpoints["qwen3_moe"][0]), ParallelConfig(tensor=2))


def test_stages_and_padding() -> None:
    assert staged_pattern("MEM*E", equal_ranges(5, 2)) == "ME|M*E"
    assert staged_pattern("MEM*E", [range(4), range(4, 5)]) == "MEM*|E"
    assert padded_vocab({"vocab_size": 200}, tensor=2) == 256
    assert padded_vocab({"vocab_size": 131072}, tensor=8) == 131072
