"""Data of the Hub are known by their commit."""

from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import HfApi
from huggingface_hub.errors import HTTPError

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core import hub
from cascade_rl.rl_stages.core.hub import HubSource

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(autouse=True)
def _asks_again() -> None:
    hub._commit.cache_clear()


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hf:openai/gsm8k", ("openai/gsm8k", None, None, None)),
        ("hf:openai/gsm8k/main:test", ("openai/gsm8k", None, "main", "test")),
        ("hf:openai/gsm8k@v1.0/main:train[:10]", ("openai/gsm8k", "v1.0", "main", "train[:10]")),
    ],
)
def test_a_source_has_parts(source: str, parts: tuple[str | None, ...]) -> None:
    assert HubSource.parse(source) == HubSource(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["hf:alone", "hf:a/b/c/d", "hf:/b", "hf:a/b@"])
def test_another_form_is_refused(source: str) -> None:
    with pytest.raises(UserError, match=r"expected hf:owner/name\[@revision\]\[/config\]\[:split\]; found"):
        HubSource.parse(source)


def test_a_revision_is_resolved_once_and_a_commit_never(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def info(_: HfApi, name: str, revision: str | None) -> Any:
        asked.append((name, revision))
        return SimpleNamespace(sha=COMMIT)

    monkeypatch.setattr(HfApi, "dataset_info", info)
    sources = ["hf:openai/gsm8k", "hf:openai/gsm8k:test", "hf:openai/gsm8k@v1.0", f"hf:openai/gsm8k@{COMMIT}"]
    assert {HubSource.parse(source).commit for source in sources} == {COMMIT}
    assert asked == [("openai/gsm8k", None), ("openai/gsm8k", "v1.0")]


@pytest.mark.parametrize("error", [ConnectionError("offline mode is enabled"), HTTPError("no route")])
def test_without_the_hub_the_message_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def info(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(HfApi, "dataset_info", info)
    with pytest.raises(UserError, match=rf"which commit main is; {error}. Name the commit, hf:openai/gsm8k@COMMIT, or"):
        assert HubSource.parse("hf:openai/gsm8k").commit
