"""Structured outputs: a JSON, YAML, XML, TOML or CSV document, or a tool call's payload, checked against a JSON schema.

Rows are those of NeMo-Gym's `structured_outputs` server. The whole answer is the document, so a fence or a word
around it is a wrong format. The score says that the schema is met, not that the content is true. As in Gym, the
schema is made strict: every property is required and no other is allowed. Differences:

- An empty list, table or object scores 0: it meets most schemas and says nothing.
- Strictness reaches every place: Gym's leaves out whatever stands in a list, as branches do (`strict_schema.py`).
- `nullable` is honoured; Gym ignores it and so demands an invented value.
- `format` is checked (`formats.py`), and `multipleOf` divides decimals (`schema_validator.py`).
- Numbers in XML and CSV are read as in JSON; Gym accepts Python's (`1_000`, `nan`) and looks at a plain `type` alone.
- A list or an object in a cell of CSV is JSON; in Gym such rows never score.
- An XML root that the schema does not describe is unwrapped, and so is a CSV row whose schema is one row's.
- A property that is itself called "properties" is not taken for a schema.
- Whatever `documents.py` refuses is a wrong format.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError

from cascade_rl.engine.core.errors import UserError
from cascade_rl.rl_stages.core.verdict import Verdict, final_answer
from cascade_rl.rl_stages.rewards.deadline_worker import DeadlineCheck
from cascade_rl.rl_stages.rewards.verifiers.structured import structured_worker
from cascade_rl.rl_stages.rewards.verifiers.structured.documents import PARSERS, Malformed
from cascade_rl.rl_stages.rewards.verifiers.structured.strict_schema import strict_schema
from cascade_rl.rl_stages.rewards.verifiers.structured.tool_text import parameters_by_tool, split_calls

if TYPE_CHECKING:
    from cascade_rl.rl_stages.core.task import Task


def parse_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """`kind`, the strict `schema`, and for a tool call `tool` and `payload_key`, checked (UserError)."""
    kind = row.get("schema_type", "json")
    if not isinstance(kind, str) or kind not in PARSERS:
        raise UserError(f"expected 'schema_type' to be one of {', '.join(PARSERS)}; found {kind!r}")
    mode = "text" if row.get("response_mode") is None else row["response_mode"]
    if mode not in ("text", "tool_call"):
        raise UserError(f"expected 'response_mode' to be text or tool_call; found {mode!r}")
    fields = {"kind": kind, "schema": _schema(row.get("schema_str")), "tool": None}
    return fields if mode == "text" else fields | {"kind": "json"} | _tool(row)


def _schema(text: object) -> dict[str, Any]:
    form = "expected 'schema_str' to be the text of a JSON schema"
    try:
        schema = strict_schema(json.loads(text if isinstance(text, str) else ""))
        Draft202012Validator.check_schema(schema)
    except UserError:
        raise
    except (ValueError, RecursionError) as error:
        raise UserError(f"{form}; found {str(text)[:80]!r} ({error})") from None
    except SchemaError as error:
        raise UserError(f"{form}; at {error.json_path} found {error.message[:200]}") from None
    if not isinstance(schema, dict):
        raise UserError(f"{form} that is an object; found {schema!r}")
    return schema


def _tool(row: Mapping[str, Any]) -> dict[str, Any]:
    try:
        tools = parameters_by_tool(row.get("responses_create_params", {}).get("tools"))
    except ValueError as error:
        raise UserError(f"expected 'responses_create_params.tools' to be {error}") from None
    if row.get("tool_name") not in tools:
        raise UserError(f"expected 'tool_name' to be one of {sorted(tools)}; found {row.get('tool_name')!r}")
    return {"tool": row["tool_name"], "tools": tools, "payload_key": row.get("tool_payload_key")}


class StructuredOutputVerifier:
    """Score 1 for a document that meets the schema, 0 for another. Text that is not a document is a wrong format.

    Safe to call from several threads. Parsing and validation run in a worker that is killed at the deadline.
    """

    concurrency = 1

    def __init__(self, deadline_seconds: float = 5.0) -> None:
        self._check = DeadlineCheck(structured_worker.__name__, deadline_seconds)

    def __call__(self, task: Task, text: str) -> Verdict:
        answer, fields = final_answer(text), task.metadata
        if not answer:
            return Verdict.wrong_format("expected a document after the reasoning; found none")
        if fields["tool"] is not None:
            try:
                answer = payload(answer, fields)
            except Malformed as error:
                return Verdict.wrong_format(str(error))
        return self._check({"kind": fields["kind"], "schema": fields["schema"], "text": answer})

    def close(self) -> None:
        """Ends the worker process, if there is one."""
        self._check.close()


def payload(answer: str, fields: Mapping[str, Any]) -> str:
    """The JSON text that the answer's only call, of the wanted tool, carries. Raises Malformed without one."""
    _, calls = split_calls(answer, fields["tools"])
    if [call.name for call in calls] != [fields["tool"]]:
        raise Malformed(f"expected one call of {fields['tool']}; found {[call.name for call in calls]}")
    arguments, key = calls[0].arguments, fields["payload_key"]
    if key and key not in arguments:
        raise Malformed(f"expected the argument {key!r}; found {sorted(arguments)}")
    return json.dumps(arguments[key] if key else arguments)
