"""The memory-mapped safetensors file, against the safetensors library."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cascade_rl.engine.core.errors import UserError
from cascade_rl.engine.models.hf_image import HfImage, read_checkpoint
from tests.gloo import run_ranks

SPECS = {
    "half": (torch.bfloat16, (3,)),
    "weight": (torch.float32, (4, 5)),
    "bias": (torch.float32, (7,)),
    "odd": (torch.float16, (3, 1, 3)),
}


def test_what_is_written_through_views_is_a_plain_safetensors_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    image = HfImage.create(path, SPECS)
    expected = {name: torch.randn(shape).to(dtype) for name, (dtype, shape) in SPECS.items()}
    for name, tensor in expected.items():
        image.view(name).copy_(tensor)
    image.sync()
    loaded = load_file(path)
    assert loaded.keys() == SPECS.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_reading_a_file_of_the_library_and_never_writing_to_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    tensors = {"a": torch.randn(3, 2), "b": torch.randn(5).bfloat16()}
    save_file(tensors, path)
    image = HfImage.read(path)
    assert sorted(image) == ["a", "b"]
    assert image.shape("a") == (3, 2)
    assert all(torch.equal(image.view(name), tensor) for name, tensor in tensors.items())
    image.view("a").zero_()
    assert torch.equal(load_file(path)["a"], tensors["a"])


def test_a_view_outlives_the_image_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.arange(4.0)}, path)
    view = HfImage.read(path).view("a")
    path.unlink()
    assert view.tolist() == [0, 1, 2, 3]


def _fill_row(path: Path) -> None:
    import os

    rank = int(os.environ["RANK"])
    HfImage.open(path).view("weight")[rank] = float(rank + 1)


def test_processes_fill_one_image(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    image = HfImage.create(path, {"weight": (torch.float32, (2, 3))})
    run_ranks(2, _fill_row, path)
    assert image.view("weight").tolist() == [[1, 1, 1], [2, 2, 2]]


def test_a_sharded_checkpoint_is_read_by_its_index(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": torch.zeros(3)}, tmp_path / "model-00002-of-00002.safetensors")
    weights = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    images = read_checkpoint(tmp_path)
    assert {name: image.view(name).tolist() for name, image in images.items()} == {
        "a": [1, 1],
        "b": [0, 0, 0],
    }


def test_damaged_and_foreign_files_are_user_errors(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with pytest.raises(UserError, match=r"no such file: .*/model\.safetensors"):
        read_checkpoint(tmp_path)
    save_file({"a": torch.ones(20)}, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"expected \d+ bytes, found \d+: .* is damaged"):
        HfImage.read(path)
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1")
    with pytest.raises(UserError, match="found something else"):
        HfImage.read(path)
    save_file({"a": torch.ones(2, dtype=torch.int64)}, path)
    with pytest.raises(UserError, match=r"a in .* has dtype I64; supported are F64, F32, BF16, F16"):
        HfImage.read(path)
