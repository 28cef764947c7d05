"""The documents the project came from: their Python scripts, with only the import renamed."""

import os
import re
import textwrap
from pathlib import Path

FOLDER = Path(os.environ.get("TRTOPS_SEEDS") or Path(__file__).parents[2] / "shared" / "seeds")
"""Where the documents lie; they are no part of the project, so tests that read them skip where they are not."""


def scripts(document: str) -> list[str]:
    """The Python blocks of the document whose file name starts so, in order, importing trtops instead of polygraphy."""
    [path] = FOLDER.glob(f"{document}*")
    blocks = re.findall(r"```python\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)
    return [
        re.sub(r"^(\s*(?:from|import)\s+)polygraphy\b", r"\1trtops", textwrap.dedent(b), flags=re.M) for b in blocks
    ]


def script_with(document: str, phrase: str) -> str:
    """The one script of a document that holds a phrase."""
    [script] = [text for text in scripts(document) if phrase in text]
    return script
