"""Decide which scripts, check commands and plugin libraries may run.

On the command line, anything that the user names may run. If ``TRTOPS_ALLOWED_SCRIPTS`` is set to a list of folders
separated by ``:``, only files in these folders may run, and none if it is empty. Workers set it to empty by default for
deployments, because the parameters of a deployment come from anyone who can reach the server.
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
    """Raise ConfigError if a file with code is not in an allowed folder; links are resolved. ``what`` is its kind."""
    folders = _allowed_folders()
    if folders is not None and not _is_in(Path(path), folders):
        raise errors.ConfigError(_refusal_text(f"{what} {os.fspath(path)}", folders))


def check_command(command: Sequence[str]) -> None:
    """Raise ConfigError if neither the program of a command nor its interpreter's script is in an allowed folder."""
    folders = _allowed_folders()
    if folders is None:
        return
    import shutil  # slow to import, and every command imports this module

    program = shutil.which(command[0])
    if program is None or _is_in(Path(program), folders):
        return  # the caller reports a program that does not exist
    if len(command) > 1 and _INTERPRETER.fullmatch(Path(program).name) and Path(command[1]).is_file():
        if _is_in(Path(command[1]), folders):
            return
        raise errors.ConfigError(_refusal_text(f"script {command[1]}", folders))
    raise errors.ConfigError(_refusal_text(f"command {' '.join(command)!r}", folders))


def ask_for(run_id: str, scripts: Sequence[str], commands: Sequence[Sequence[str]], *, allowed: bool) -> None:
    """Raise ConfigError if scripts or commands of a stored run may not run, since neither caller nor folder allows it.

    Anyone who can write to a store can put any script or command into a run.
    """
    found = [f"the script {script}" for script in scripts]
    found += [f"the command {shlex.join(command)}" for command in commands]
    if not found or allowed:
        return
    if _allowed_folders() is not None:
        for script in scripts:
            check_file(script)
        for command in commands:
            check_command(command)
        return
    raise errors.ConfigError(
        f"Run {run_id} would run {' and '.join(found)} on this machine. Nothing was run, because anyone with write "
        "access to the store can put such code there. Inspect it, then allow it: --allow-scripts (in Python and flows: "
        "allow_scripts=True)."
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
        return f"The {what} may not be run: {VARIABLE} only allows files in {places}. Move it there."
    return (
        f"The {what} may not be run: no folder is allowed here. The parameters of a deployment come from anyone who "
        f"can reach the server, so a run only executes files in folders that its worker allows: start the worker with "
        f"{VARIABLE}=<folder>:<folder>, or set the variable in the deployment's job_variables.env."
    )
