"""Every key has its sentence, and docs/configuration.md is what the classes say.

UPDATE_GOLDEN=1 writes the page.
"""

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from cascade_rl.launchers.help.configuration_page import configuration_page, configured
from cascade_rl.launchers.help.sentences import sentence

PAGE = Path(__file__).parents[3] / "docs/configuration.md"


def test_the_page_is_what_the_classes_say() -> None:
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(configuration_page())
    assert PAGE.read_text() == configuration_page(), "stale: UPDATE_GOLDEN=1 pytest tests/launchers/help"


@pytest.mark.parametrize("cls", configured(), ids=lambda cls: cls.__name__)
def test_every_field_has_its_sentence(cls: type[Any]) -> None:
    assert [item.name for item in fields(cls) if not sentence(cls, item.name).strip()] == []


def test_links_between_the_sections_lead_somewhere() -> None:
    page = configuration_page()
    headings = {name.lower() for name in re.findall(r"^## (\w+)$", page, re.MULTILINE)}
    links = set(re.findall(r"\]\(#(\w+)\)", page))
    assert links
    assert links - headings == set()
