"""YAML's scalars, as documents with a schema that accepts them and one that does not."""

from pathlib import Path

import pytest

from cascade_rl.launchers.verify.published import command, yaml_scalars
from cascade_rl.launchers.verify.published.case import Source

TABLE = """\
'#empty': ['null', 'null()', 'null']
'!!int 5': ['int', '5', '5']
'0o10': ['int', '8', '8']
'3e3': ['float', '3000', '3000.0']
'True': ['bool', 'true()', 'true']
'no': ['str', 'no', 'no']
'.inf': ['inf', 'inf()', '.inf']
"""


@pytest.mark.process
def test_a_scalar_has_its_type_and_value_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "yamlcore-1.0/tests/data/core.schema"
    path.parent.mkdir(parents=True)
    path.write_text(TABLE)
    found = {one.group: one for one in command.agreements(tmp_path, Source("yamlcore", yaml_scalars.cases))}
    assert [(name, one.answers) for name, one in found.items()] == [("scalars", 6), ("scalars of another type", 6)]
    assert [one.id for one in found["scalars"].differences] == [".inf"]
    assert not found["scalars of another type"].differences
