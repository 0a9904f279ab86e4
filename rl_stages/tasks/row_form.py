"""How the rows of a stage are read: own columns, and the row forms of TRL and verl, become rows of NeMo-Gym's form."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.config.stage import OnPolicyStage, Stage
from cascade_rl.rl_stages.core.messages import shown
from cascade_rl.rl_stages.data.rows import Row
from cascade_rl.rl_stages.tasks.domains import is_third_party

GYM = ("agent_ref", "responses_create_params")


@dataclass(frozen=True)
class RowForm:
    """How rows are read. Without settings, as NeMo-Gym writes them.

    rewards  the third-party rewards that a row may name, which are those of the launcher; None: any, for a reader that
             calls none
    domain   that of a row with a `prompt` (text, or messages) instead of NeMo-Gym's keys, as TRL's and verl's rows have
             it; None: no such rows
    columns  field of the row -> the column where the data have it, `a.b` for a nested one
    """

    rewards: Collection[str] | None = None
    domain: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, stage: Stage) -> RowForm:
        """That of a stage's data. A stage with several domains cannot say to which one a plain row belongs."""
        trained = stage.trained_domains if isinstance(stage, OnPolicyStage) else ()
        only = next(iter(trained)) if len(trained) == 1 else None
        return cls(sorted(filter(is_third_party, trained)), only, stage.columns)

    def task_row(self, row: Row) -> Row:
        """The row in NeMo-Gym's form. Raises UserError for a column that is not there, and for a row without prompt."""
        row = self.renamed(row)
        if any(key in row for key in GYM):
            return row
        if "prompt" not in row:
            raise UserError(
                "expected 'prompt', or NeMo-Gym's 'responses_create_params' and 'agent_ref'; found the columns "
                f'{shown(sorted(row))}. If another one is the prompt, name it: columns={{"prompt": NAME}}'
            )
        if self.domain is None:
            raise UserError(
                "expected 'agent_ref' to be {\"name\": <domain>}, since no single domain is known for rows with a "
                "plain 'prompt'; found none. Name it in the row, or give the stage one domain"
            )
        others = {name: value for name, value in row.items() if name != "prompt"}
        return others | {"agent_ref": {"name": self.domain}, "responses_create_params": {"input": row["prompt"]}}

    def renamed(self, row: Row) -> Row:
        """The row with its `columns` under the fields' names. Raises UserError for a column that is not there."""
        return {**row, **{name: _column(row, path) for name, path in self.columns.items()}} if self.columns else row

    @property
    def shown(self) -> str:
        """What of it may change the tasks of a source, as the rest of a sentence; empty for rows of NeMo-Gym alone."""
        rewards = "".join(f", rewarded by {name}" for name in self.rewards or ())
        plain = f", else of {self.domain}" if self.domain else ""
        return rewards + plain + "".join(f", {name} from {path}" for name, path in sorted(self.columns.items()))


ANY = RowForm()
OWN = RowForm(rewards=())


def _column(row: Row, path: str) -> Any:
    value: Any = row
    for name in path.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise UserError(f"expected the column {path!r}, which `columns` names; found {shown(sorted(row))}")
        value = value[name]
    return value
