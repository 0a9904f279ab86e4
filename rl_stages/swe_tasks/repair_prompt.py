"""The prompts of repairs: the issue, with the files at fault and the answer's format, or with an agent's rules."""

from __future__ import annotations

from cascade_rl.rl_stages.rewards.swe.patch import Edit, edit_text
from cascade_rl.rl_stages.rewards.swe.repository import Files

INSTRUCTIONS = (
    "Repair the code so that the issue is solved. Answer with one or more blocks in this form; the lines to search "
    "for must be lines of the file, with their indentation:"
)
AGENT_INSTRUCTIONS = (
    "Repair the repository in the working directory so that the issue is solved. Call bash once a turn, with one shell "
    "command; files stay from one command to the next, processes and variables do not. Then call submit. Hidden tests "
    "decide, and what you did to source files that are there is all that counts."
)
EXAMPLE = edit_text(Edit("path/to/file.py", "lines that are there", "lines that replace them"))


def repair_prompt(issue: str, files: Files) -> str:
    shown = "\n\n".join(f"### {path}\n```python\n{text.rstrip()}\n```" for path, text in files.items())
    return (
        f"<issue>\n{issue}\n</issue>\n\n{shown}\n\n{INSTRUCTIONS}\n\n<solution>\n```python\n{EXAMPLE}\n```\n</solution>"
    )


def agent_prompt(issue: str) -> str:
    return f"<issue>\n{issue}\n</issue>\n\n{AGENT_INSTRUCTIONS}"
