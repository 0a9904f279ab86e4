"""IFEval's and IFBench's checkers beside ours, on stand-ins for the packages."""

import json
from pathlib import Path

import pytest

from cascade_rl.launchers.verify.published import instructions
from tests.launchers.verify.published.test_command import write

CHECKERS = """
from nltk.tokenize.punkt import PunktTokenizer
class Checker:
    def __init__(self, name): self.name = name
    def build_description(self, **kwargs): self.kwargs = kwargs
    def check_following(self, response):
        if "tagger" in response:
            raise LookupError("Use nltk.download('tagger')")
        tokenizer = PunktTokenizer()
        tokenizer.load_lang()
        known = response in tokenizer._params.abbrev_types
        return known or self.kwargs.get("N") == len(response)
class All(dict):
    def __missing__(self, name): return Checker
INSTRUCTION_DICT = All()
"""
PUNKT = """
class PunktParameters:
    def __init__(self):
        self.abbrev_types, self.collocations, self.sent_starters, self.ortho_context = set(), set(), set(), {}
class PunktTokenizer:
    def load_lang(self, lang="english"): raise LookupError("Use nltk.download('punkt_tab')")
"""
MODEL = """
class Model: abbrev_types, collocations, sent_starters, ortho_context = {"Mr."}, set(), set(), {}
def load_model(language): return Model
"""
PACKAGES = {
    "nltk/__init__.py": "",
    "nltk/tokenize/__init__.py": "",
    "nltk/tokenize/punkt.py": PUNKT,
    "punkt.py": MODEL,
}


@pytest.mark.process
def test_a_response_has_upstream_s_verdict_unless_that_needs_nltk_s_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        {"prompt": text, "instruction_id_list": ["count:numbers"], "kwargs": [{"N": 3, "small_n": None}]}
        for text in ("right", "wrong", "tagged", "short")
    ]
    write(tmp_path / "ifbench/data/IFBench_test.jsonl", rows)
    said = {"right": "1 2", "wrong": "1", "tagged": "tagger", "short": "Mr."}
    write(tmp_path / "ifbench/data/sample_output.jsonl", [{"prompt": p, "response": r} for p, r in said.items()])
    for name in ("ifeval", "ifbench"):
        path = tmp_path / "if_verifiable" / name / "instructions_registry.py"
        path.parent.mkdir(parents=True)
        path.write_text(CHECKERS)
    for name, source in PACKAGES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(source)
    monkeypatch.setattr(instructions, "LESSONS", 2)
    found = list(instructions.cases(tmp_path))
    of_rows = [case for case in found if case.group == "ifbench"]
    assert [(case.id, case.turns, case.score) for case in of_rows] == [
        ("0 count:numbers", ("1 2",), 1.0),
        ("1 count:numbers", ("1",), 0.0),
        ("3 count:numbers", ("Mr.",), 1.0),
    ]
    assert of_rows[0].row["kwargs"] == [{"N": 3}]
    lessons = [case for case in found if case.group == "ifeval"]
    assert len(lessons) >= 2 * 2 and json.dumps(lessons[0].row)
