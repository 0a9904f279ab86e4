"""Every file that comments, docstrings and pages name can be opened: here, or in the project that is named with it."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# Of the environment, of builds and of runs.
NOT_OURS = re.compile(r"\.(?!ci$|pre-commit)|(build|dist|runs|__pycache__)$|.*\.egg-info$")
TEXTS = (".py", ".md", ".toml", ".yaml", ".cff", ".in", "")
# Not a pattern, nor a part of one.
PATH = re.compile(r"(?<![\w.$%~*{}<>)/-])[\w./-]*\w\.(?:py|md|toml|json|sh)\b(?!\.\w|-)")
UPWARDS = re.compile(r"(\.{1,2}/)+")
FLOORS = {init.parent.name for init in ROOT.glob("*/__init__.py")}
NOWHERE = re.compile(r"\bfacts/|\bDESIGN\b|\bpeers \d+")
# A file of another project has its name within a line's length.
PROJECT = re.compile(
    r"\b(NVIDIA(-NeMo)?/[\w-]+|[\w-]+/[\w-]+@\w+|Megatron-LM|NeMo-Gym|NeMo-RL|llama\.cpp|transformers|verl|vLLM)\b"
)
NEAR = 120
MADE = {
    # by a run, in its folder
    "adapter_config.json", "inputs.json", "lineage.json", "parity.json", "scores.json",
    # by a command that is asked to write it
    "certificate.json", "jobs.json", "out/jobs.json", "out/NN_stage.sh", "plan.json",
    # by `cascade eval`
    "OUT/results.json", "OUT/settings.json", "settings.json",
    # by `cascade new`
    "mine/launcher.py", "test_reward.py",
}  # fmt: skip
EXAMPLES = {
    "LAUNCHER.py": "stands for a user's launcher file",
    "rl_stages/rewards/verifiers/palindrome.py": "the reader writes it: docs/adding_a_verifier.md",
    "path/to/file.py": "in the prompt of a model",
    "tests/test_a.py": "in the example of a repository",
    "heap.py": "in the example of a repository",
    "utils.py": "CONTRIBUTING.md wants no file of this name",
}


def files(folder: Path = ROOT) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and not NOT_OURS.match(path.name):
            yield from files(path)
        elif path.is_file():
            yield path


@cache
def ends() -> frozenset[str]:
    """Every path of the repository, also without its first folders."""
    paths = [path.relative_to(ROOT).parts for path in files()]
    return frozenset("/".join(parts[start:]) for parts in paths for start in range(len(parts)))


def prose(path: Path) -> Iterator[str]:
    """What a reader is told: comments and docstrings of Python, all of another file."""
    text = path.read_text()
    if path.suffix != ".py":
        yield text
        return
    yield from (
        word.string for word in tokenize.generate_tokens(io.StringIO(text).readline) if word.type == tokenize.COMMENT
    )
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def cannot_be_opened(text: str) -> list[str]:
    named = {found: UPWARDS.sub("", found.group()) for found in PATH.finditer(text)}
    return [name for found, name in named.items() if not (is_known(name) or is_of_another_project(text, found, name))]


def is_known(name: str) -> bool:
    return name in ends() or name in MADE or name in EXAMPLES


def is_of_another_project(text: str, found: re.Match[str], name: str) -> bool:
    around = text[max(0, found.start() - NEAR) : found.end() + NEAR]
    return name.partition("/")[0] not in FLOORS and PROJECT.search(around) is not None


def folders() -> list[Path]:
    return sorted({path.parent for path in files() if path.suffix in TEXTS})


@pytest.mark.parametrize("folder", folders(), ids=lambda folder: str(folder.relative_to(ROOT)))
def test_what_is_named_is_there(folder: Path) -> None:
    texts = [path for path in folder.iterdir() if path.is_file() and path.suffix in TEXTS and path != Path(__file__)]
    found = {path.name: [name for text in prose(path) for name in cannot_be_opened(text)] for path in texts}
    nowhere = {path.name: NOWHERE.findall(path.read_text()) for path in texts}
    assert {name: names for name, names in found.items() if names} == {}
    assert {name: words for name, words in nowhere.items() if words} == {}


@pytest.mark.parametrize(
    "text",
    ["see gone.py", "in docs/gone.md,", "(engine/no/such/trainer.py)", "`gone.json`", "as vLLM, see engine/gone.py"],
)
def test_a_path_that_is_not_there_is_found(text: str) -> None:
    assert len(cannot_be_opened(text)) == 1


@pytest.mark.parametrize(
    "text", ["trainer.py", "train/trainer.py", "`docs/README.md`.", "vLLM's v1/core/gone.py", "a.json.gz"]
)
def test_a_path_that_is_there_is_not(text: str) -> None:
    assert cannot_be_opened(text) == []


def test_every_exemption_is_needed() -> None:
    texts = "\n".join(path.read_text() for path in files() if path.suffix in TEXTS and path != Path(__file__))
    assert [name for name in (*MADE, *EXAMPLES) if name not in texts] == []
    assert (MADE | EXAMPLES.keys()) & ends() == set()
