"""GitHub's tables need a backslash before a pipe in code; those of MkDocs show it."""

import re
from typing import Any

CODE = re.compile(r"`[^`\n]+`")


def on_page_markdown(markdown: str, **_: Any) -> str:
    return CODE.sub(lambda code: code.group().replace("\\|", "|"), markdown)
