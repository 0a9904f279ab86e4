"""What would fail at true size, found without a GPU."""

import importlib
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.launchers.rehearse.true_size import failures
from cascade_rl.rl_stages.config.base import BaseModel
from cascade_rl.rl_stages.config.cascade import Cascade
from cascade_rl.rl_stages.config.source import Source
from cascade_rl.rl_stages.config.text import override
from cascade_rl.rl_stages.data.tokenizer import train_tokenizer

BASE = BaseModel(hf_config={})  # without a tokenizer no prompt is measured


def launcher(*settings: str) -> Cascade:
    return override(importlib.import_module("cascade_rl.launchers.cascade2_30b_a3b").CASCADE, settings)


def told(cascade: Cascade, base: BaseModel = BASE, sources: dict[str, str] | None = None) -> dict[str, list[str]]:
    return {name: lines for name, lines in failures(cascade, base, sources or {}).items() if lines}


@pytest.fixture(autouse=True)
def known_hosts(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    known = {"genrm", "long-context-judge", "swe-judge"}

    def resolve(host: str, *_: Any) -> None:
        if host not in known:
            raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    return known


@pytest.mark.parametrize("kind", ["h100", "b200"])
def test_the_published_launcher_has_no_fault(kind: str) -> None:
    assert told(launcher(f"hardware={kind}")) == {}


def test_a_judge_whose_name_does_not_resolve_is_told_for_each_stage(known_hosts: set[str]) -> None:
    known_hosts.remove("genrm")
    found = told(launcher())
    assert set(found) == {"rlhf_teacher", "rlhf"}
    assert "http://genrm:8000/v1, which does not resolve here" in found["rlhf"][0]


def test_a_cache_without_room_for_a_sequence_is_told() -> None:
    found = told(launcher("layouts.h100.code_rl.rollout.kv_cache_mib=64"))
    assert "expected room for one sequence of max_model_len" in found["code_rl"][0]


def row(message: dict[str, str]) -> dict[str, Any]:
    return {
        "agent_ref": {"name": "code"},
        "responses_create_params": {"input": [message]},
        "verifier_metadata": {"unit_tests": {"inputs": ["1"], "outputs": ["1"]}},
    }


def test_prompts_that_do_not_fit_are_told(tmp_path: Path) -> None:
    long = {"role": "user", "content": "word " * 60_000}
    rows = [row({**long, "content": f"{number} {long['content']}"}) for number in range(12)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    train_tokenizer([[long]], vocab_size=300).save_pretrained(tmp_path / "tokenizer")
    base = BaseModel(hf_config={}, tokenizer=str(tmp_path / "tokenizer"))
    cascade = launcher()
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    sources = {Source.parse(text).path: str(empty) for stage in cascade.stages for text in stage.data}
    [path] = cascade.stage("code_rl").data
    found = told(cascade, base, sources | {path: str(tmp_path / "rows.jsonl")})
    assert list(found) == ["code_rl"]
    assert (
        "prompts of code" in found["code_rl"][0]
        and "are too long: expected at most 24,576 tokens" in found["code_rl"][0]
    )
