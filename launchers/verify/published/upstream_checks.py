"""The program that asks IFEval's and IFBench's own checkers, as if-verifiable has them: `python -m ... FOLDER`.

Each line of its input is [benchmark, id, kwargs, response]; each of its output is true or false, or null where a
checker needs data of NLTK, which are in no package.
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
    names = ("ifeval", "ifbench")
    checkers = {name: import_module(f"if_verifiable.{name}.instructions_registry").INSTRUCTION_DICT for name in names}
    for line in sys.stdin:
        benchmark, name, kwargs, response = json.loads(line)
        print(json.dumps(_verdict(checkers[benchmark][name](name), kwargs, response)))


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
