"""What a policy is asked in one turn: the issue, the files at fault, and how to answer."""

from __future__ import annotations

from typing import Any

from cascade_rl.rl_stages.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.swe.repository import Files

INSTRUCTIONS = (
    "Repair the code so that the issue is solved. Answer with one or more blocks in this form; the lines to search "
    "for must be lines of the file, with their indentation:"
)
EXAMPLE = edit_text(Edit("path/to/file.py", "lines that are there", "lines that replace them"))


def repair_prompt(issue: str, files: Files) -> str:
    shown = "\n\n".join(f"### {path}\n```python\n{text.rstrip()}\n```" for path, text in files.items())
    return (
        f"<issue>\n{issue}\n</issue>\n\n{shown}\n\n{INSTRUCTIONS}\n\n<solution>\n```python\n{EXAMPLE}\n```\n</solution>"
    )


def task_row(domain: str, issue: str, files: Files, fields: dict[str, Any]) -> dict[str, Any]:
    """The NeMo-Gym row of a repair."""
    message = {"role": "user", "content": repair_prompt(issue, files)}
    return {"responses_create_params": {"input": [message]}, "agent_ref": {"name": domain}, **fields}
