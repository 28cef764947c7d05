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
    if not _is_in(Path(path)):
        raise _refused(f"{what} {os.fspath(path)}")


def check_command(command: Sequence[str]) -> None:
    """Raise ConfigError if neither the program of a command nor its interpreter's script is in an allowed folder."""
    if _allowed_folders() is None:
        return
    import shutil  # slow to import, and every command imports this module

    program = shutil.which(command[0])
    if program is None or _is_in(Path(program)):
        return  # the caller reports a program that does not exist
    # An interpreter is outside of the folder, as a rule: its script decides, if the first argument is one.
    if len(command) > 1 and _INTERPRETER.fullmatch(Path(program).name) and Path(command[1]).is_file():
        check_file(command[1])
    else:
        raise _refused(f"command {' '.join(command)!r}")


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
        f"Run {run_id} would run {' and '.join(found)} on this machine, and anyone with write access to the store can "
        "put such code there. Nothing was run. Inspect it, then allow it: --allow-scripts (in Python and flows: "
        "allow_scripts=True)."
    )


def _allowed_folders() -> list[Path] | None:
    text = os.environ.get(VARIABLE)
    return None if text is None else [Path(part).resolve() for part in text.split(os.pathsep) if part]


def _is_in(path: Path) -> bool:
    folders = _allowed_folders()
    return folders is None or any(path.resolve().is_relative_to(folder) for folder in folders)


def _refused(what: str) -> errors.ConfigError:
    places = ", ".join(map(str, _allowed_folders() or ()))
    return errors.ConfigError(
        f"The {what} may not be run: {VARIABLE} only allows files in {places or 'no folder'}. Move it there, or start "
        f"the worker with {VARIABLE}=<folder>:<folder> (a deployment: job_variables.env)."
    )
