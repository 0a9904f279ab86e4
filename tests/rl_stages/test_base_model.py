"""What a random base model is made with: a tokenizer that knows the words of every stage."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from cascade_rl.engine.core.settings import ParallelConfig
from cascade_rl.rl_stages import base_model
from cascade_rl.rl_stages.base_model import _train_tokenizer, _with_special_ids
from tests.rl_stages.tiny_cascade import CASCADE


@pytest.mark.slow
def test_every_word_of_every_stage_is_one_token() -> None:
    tokenizer = _train_tokenizer(CASCADE)
    assert len(tokenizer) <= 512
    for text in ("What is 3 + 4?", "Mia has 5 books", "Describe the garden.", " \\boxed{"):
        assert len(tokenizer.encode(text, add_special_tokens=False)) <= len(text.split()) + 2
    assert _train_tokenizer(CASCADE).get_vocab() == tokenizer.get_vocab()


@pytest.mark.slow
def test_the_model_knows_the_tokenizers_special_ids() -> None:
    tokenizer = _train_tokenizer(CASCADE)
    config = _with_special_ids({"vocab_size": 512, "eos_token_id": 99}, tokenizer)
    assert tokenizer.convert_ids_to_tokens(config["eos_token_id"]) == "<|im_end|>"
    assert tokenizer.convert_ids_to_tokens(config["pad_token_id"]) == "<|endoftext|>"
    assert config["vocab_size"] == 512


def test_a_random_model_has_the_same_numbers_whatever_the_precision(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Stages' hashes do not say how it was made."""
    built: list[ParallelConfig] = []
    stand_ins = {
        "_train_tokenizer": lambda _: SimpleNamespace(pad_token_id=0, eos_token_id=1),
        "build_model": lambda _hf, parallel, *, seed: built.append(parallel),
        "is_rank0": lambda: False,
        "barrier": lambda: None,
        "export_hf": lambda *_, **__: None,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(base_model, name, stand_in)
    base_model._make(CASCADE, ParallelConfig(tensor=2, precision="bfloat16"), tmp_path)
    assert built == [ParallelConfig(tensor=2)]
