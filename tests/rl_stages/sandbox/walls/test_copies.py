import tarfile
import zipfile
from pathlib import Path

import pytest

from cascade_rl.rl_stages.sandbox.walls.copies import Machine
from cascade_rl.rl_stages.sandbox.walls.landlock import around

SITE = "python/lib/python3.12/site-packages"
OTHER = "other/lib/python3/dist-packages"
FILES = [
    *(f"{SITE}/pack/{name}.py" for name in ("__init__", "one", "two", "tests/test_one")),
    *(
        f"{SITE}/{name}"
        for name in ("single.py", "__pycache__/single.cpython-312.pyc", "__pycache__/kept.cpython-312.pyc")
    ),
    *(f"{SITE}/Pack_Age-2.0.dist-info/{name}" for name in ("METADATA", "RECORD")),
    *(f"{SITE}/pip/_vendor/{name}" for name in ("pack/__init__.py", "single.py", "kept.py")),
    *(f"{SITE}/{name}" for name in ("kept/__init__.py", "kept/single.py", "kept/pack/other.py")),
    *(f"{OTHER}/{name}" for name in ("pack/__init__.py", "pack-1.0.egg-info", "single-1.0.egg-info")),
    *(f"work/.git/{name}" for name in ("HEAD", "objects/x")),
    *(f"work/src/pack/{name}.py" for name in ("__init__", "one")),
    "project/pyproject.toml",
    "project/src/pack/old.py",
    *(f"anywhere/pack/{name}.py" for name in ("one", "two", "three")),
    *(f"elsewhere/pack/{name}.py" for name in ("a", "b")),
    *(f"wheels/{name}" for name in ("pack-2.0.tar.zst", "kept-1.0.zip")),  # which are no archives
    "cache/pip/http-v2/0/1",
    "cache/uv/archive-v0/x/pack/__init__.py",
    "cache/uv/archive-v0/x/pack-3.0.dist-info/METADATA",
]
ARCHIVES = {
    "pack_age-2.0-py3-none-any.whl": "pack/__init__.py",
    "pip-24.0-py3-none-any.whl": "pip/_vendor/pack/one.py",
    "single-1.0.tar.gz": "single-1.0/src/single.py",
    "package.zip": "package/kept.py",
    "of_archives.zip": "inner/any.whl",
}
OPAQUE = {"wheels/pack-2.0.tar.zst", "wheels/kept-1.0.zip", "wheels/of_archives.zip", "cache/pip/http-v2"}
PACKAGE = frozenset(("__init__.py", "one.py", "two.py"))


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("machine")
    for path in FILES:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text("pack/__init__.py,,\n" if path.endswith("RECORD") else "x = 1\n")
    for name, member in ARCHIVES.items():
        kept = root / "kept.txt"
        kept.touch()
        if name.endswith(".tar.gz"):
            with tarfile.open(root / "wheels" / name, "w:gz") as tar:
                tar.add(kept, member)
        else:
            with zipfile.ZipFile(root / "wheels" / name, "w") as zipped:
                zipped.write(kept, member)
    return root


def found(root: Path, path: str, names: frozenset[str] = frozenset()) -> set[str]:
    machine = Machine([str(root)])
    return {str(Path(each).relative_to(root)) for each in (*machine.copies(path, names), *machine.opaque)}


@pytest.mark.parametrize("path", ["pack", "src/pack"])
def test_every_copy_of_a_package_is_found_and_nothing_else(root, path):
    assert found(root, path, PACKAGE) == {
        *(f"{SITE}/pack", f"{SITE}/Pack_Age-2.0.dist-info", f"{SITE}/pip/_vendor/pack"),
        *(f"{OTHER}/pack", f"{OTHER}/pack-1.0.egg-info"),
        *("work", "project/src/pack", "anywhere/pack", "wheels/pack_age-2.0-py3-none-any.whl"),
        *("wheels/pip-24.0-py3-none-any.whl", "cache/uv/archive-v0/x/pack", "cache/uv/archive-v0/x/pack-3.0.dist-info"),
        *OPAQUE,
    }


def test_every_copy_of_a_module(root):
    assert found(root, "single.py") == {
        *(f"{SITE}/single.py", f"{SITE}/__pycache__/single.cpython-312.pyc", f"{SITE}/pip/_vendor/single.py"),
        *(f"{OTHER}/single-1.0.egg-info", "wheels/single-1.0.tar.gz", *OPAQUE),
    }


def test_what_landlock_allows_is_all_but_what_is_hidden(root):
    hidden = [f"{root}/{path}" for path in (f"{SITE}/pack", f"{SITE}/single.py", "work")]
    (root / SITE / "link").symlink_to("/etc")
    readable, listed = around([str(root), f"{root}/wheels"], hidden)
    shown = [path for path in FILES if any(Path(root, path).is_relative_to(folder) for folder in readable)]
    left_out = (f"{SITE}/pack/", f"{SITE}/single.py", "work/")
    assert shown == [path for path in FILES if not path.startswith(left_out)]
    assert f"{root}/{SITE}" in listed and not any(path.endswith("link") for path in readable)
    assert not any(Path(root, path).is_relative_to(Path(folder)) for path in ("work/.git",) for folder in readable)
