"""docs/tour.md: its numbers are those of docs/tour.json, and what it names in a file is defined there."""

import ast
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

from tests.launchers.cli.tour import PAGE, RECORD

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`([\w/]+\.py)`,\s`(\w+)`", PAGE.read_text())


def test_every_number_is_that_of_the_run() -> None:
    told = re.sub(r"\s+", " ", PAGE.read_text())
    for words in said():
        assert re.sub(r"\s+", " ", words) in told, words


def said() -> list[str]:
    record = json.loads(RECORD.read_text())
    first, *others = record["answers"]
    rewards = np.array([answer["reward"] for answer in record["answers"]])
    mean, deviation, total = rewards.mean(), rewards.std(ddof=1), -sum(record["logprobs"])
    tokens = record["tokens"]
    digits, length = sum(map(str.isdigit, record["text"])), len(record["text"])
    assert (digits, length, digits / length) == (1, 10, first["reward"])
    assert {(answer["reward"], answer["finish"]) for answer in others} == {(0.0, "length")}
    assert {len(answer["token_ids"]) for answer in others} == {32}
    assert max(record["gaps"].values()) < 1e-5 and record["gaps"]["max_gap"] < 1e-6
    assert record["versions"] == [[0], [1]]
    return [
        json.dumps(record["row"]),
        record["prompt"].strip(),
        f"These are {len(record['prompt_ids'])} token ids, which begin with `{str(record['prompt_ids'][:4])[:-1]}`",
        f"asks for {len(record['answers'])} samples",
        json.dumps(first["token_ids"]),
        f"ends after {len(first['token_ids'])} with `<|im_end|>`, which is id {first['token_ids'][-1]}",
        f"`{record['text'][2:6]}` stands in the middle",
        f"mean {mean:.4f}, standard deviation {deviation:.5f}",
        f"({first['reward']} - {mean:.4f}) / {deviation:.5f} = {first['advantage']:.3f}",
        f"(0 - {mean:.4f}) / {deviation:.5f} = {others[0]['advantage']:.3f}",
        f"the mean is {-total / len(record['logprobs']):.2f}; a coin with 256 sides has -ln 256 = {-math.log(256):.3f}",
        f"/ {tokens} = {record['step']['loss']:.2f}",
        f"{first['advantage']:.3f} x {total:.2f} / {tokens} = {first['advantage'] * total / tokens:.2f} in it",
        f"whose norm is {record['step']['grad_norm']:.2f}",
        f"gives {record['step']['lr']}.",
    ]


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_is_named_is_defined_in_that_file(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    assert name in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def test_the_tour_names_its_stops() -> None:
    assert len(NAMED) > 15
