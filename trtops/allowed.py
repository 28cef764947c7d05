"""Which code of other people may be run: scripts, check commands and plugin libraries.

On a person's own command line whatever they name is run. Where ``TRTOPS_ALLOWED_SCRIPTS`` is set, to folders with ``:``
between them, only what lies in these is; nothing at all where it is empty, as it is in runs of a deployment whose worker does
not say otherwise: their parameters come from whoever reaches the server.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from trtops import errors

VARIABLE = "TRTOPS_ALLOWED_SCRIPTS"

_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|bash|sh|dash|zsh|perl|ruby|node")


def check_file(path: str | os.PathLike[str], what: str = "script") -> None:
    """Refuse a file with code in it that is not in an allowed folder; links count as what they lead to.

    Args:
        path: The file.
        what: What it is, for the message.

    Raises:
        ConfigError: If it may not be run.
    """
    folders = _allowed_folders()
    if folders is not None and not _is_in(Path(path), folders):
        raise errors.ConfigError(_refusal_text(f"{what} {os.fspath(path)}", folders))


def check_command(command: Sequence[str]) -> None:
    """Refuse a command whose program, or the script that its interpreter is given first, is not in an allowed folder.

    Raises:
        ConfigError: If it may not be run.
    """
    folders = _allowed_folders()
    if folders is None:
        return
    import shutil  # with all that packs archives, which nothing else here needs: every command starts with this module

    program = shutil.which(command[0])
    if program is None or _is_in(Path(program), folders):
        return  # one that does not exist cannot be run; whoever tries will say so
    if len(command) > 1 and _INTERPRETER.fullmatch(Path(program).name) and Path(command[1]).is_file():
        if _is_in(Path(command[1]), folders):
            return
        raise errors.ConfigError(_refusal_text(f"script {command[1]}", folders))
    raise errors.ConfigError(_refusal_text(f"command {' '.join(command)!r}", folders))


def ask_for(run_id: str, scripts: Sequence[str], commands: Sequence[Sequence[str]], *, allowed: bool) -> None:
    """Refuse to run what nobody named here but a run of the memory, unless it was asked for or lies in an allowed folder.

    Whoever may write to a store can put any script or command into a run.

    Args:
        run_id: The run.
        scripts: Paths of scripts in it.
        commands: Commands in it.
        allowed: Whether the caller has said that they may be run.

    Raises:
        ConfigError: If there are any, and they were not asked for; the message shows them.
    """
    found = [f"the script {script}" for script in scripts] + [
        f"the command {shlex.join(command)}" for command in commands
    ]
    if not found or allowed:
        return
    if _allowed_folders() is not None:
        for script in scripts:
            check_file(script)
        for command in commands:
            check_command(command)
        return
    raise errors.ConfigError(
        f"Run {run_id} would have {' and '.join(found)} run on this machine. Nothing was run: whoever may write to the store can "
        "put that there. Look at it, and if it may be run, say so: --allow-scripts (in Python and flows: allow_scripts=True)."
    )


def _allowed_folders() -> list[Path] | None:
    text = os.environ.get(VARIABLE)
    return None if text is None else [Path(part).resolve() for part in text.split(os.pathsep) if part]


def _is_in(path: Path, folders: list[Path]) -> bool:
    real = path.resolve()
    return any(real.is_relative_to(folder) for folder in folders)


def _refusal_text(what: str, folders: list[Path]) -> str:
    if folders:
        places = ", ".join(map(str, folders))
        return f"The {what} may not be run: {VARIABLE} allows only what is in {places}. Put it there."
    return (
        f"The {what} may not be run: no folder for scripts is allowed here. A run of a deployment takes its parameters from "
        f"whoever reaches the server, so it runs only what lies in folders that its worker names: start the worker with "
        f"{VARIABLE}=<folder>:<folder>, or put that into the deployment's job_variables.env."
    )
