"""Data sets of the Hugging Face Hub, known by their commit: `hf:owner/name[@revision][/configuration][:split]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from cascade_rl.engine.core.errors import UserError

HUB = "hf:"
FORM = f"{HUB}owner/name[@revision][/config][:split]"
_SOURCE = re.compile(
    rf"{HUB}(?P<repository>[^/@:]+/[^/@:]+)(?:@(?P<revision>[^/:]+))?(?:/(?P<configuration>[^/:]+))?(?::(?P<split>.+))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True)
class HubSource:
    """Without a revision it is the newest of the main branch, and without a split "train"."""

    repository: str
    revision: str | None
    configuration: str | None
    split: str | None

    @classmethod
    def parse(cls, source: str) -> HubSource:
        """Raises UserError for another form."""
        match = _SOURCE.fullmatch(source)
        if match is None:
            raise UserError(f"expected {FORM}; found {source!r}")
        return cls(**match.groupdict())

    @property
    def commit(self) -> str:
        """The hash of its commit, asked once in a process. Raises UserError if the Hub cannot be asked."""
        return _commit(self.repository, self.revision)


@cache
def _commit(repository: str, revision: str | None) -> str:
    if revision and _COMMIT.fullmatch(revision):
        return revision
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HTTPError

    try:
        return str(HfApi().dataset_info(repository, revision=revision).sha)
    except (OSError, ValueError, HTTPError) as error:
        raise UserError(
            f"{HUB}{repository}: expected the Hub to say which commit {revision or 'main'} is; {error}. Name the "
            f"commit, {HUB}{repository}@COMMIT, or copy the data here"
        ) from None
