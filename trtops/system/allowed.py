"""Decide on running scripts, check commands and plugin libraries.

If ``TRTOPS_ALLOWED_SCRIPTS`` is a list of folders separated by ``:``, only files in these may run, and none if it is
empty, as it is by default for deployments: their parameters come from anyone who can reach the server.
"""

import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from trtops import errors

VARIABLE = "TRTOPS_ALLOWED_SCRIPTS"

_INTERPRETER = re.compile(r"(python|pypy)[\d.]*|bash|sh|dash|zsh|perl|ruby|node")


def split_script(text: str) -> tuple[str, str]:
    """Split ``script.py:function``; any other text, such as a path, has an empty function."""
    match = re.fullmatch(r"(.+\.py):(\w*)", text)
    return (match[1], match[2]) if match else (text, "")


def check_file(path: str | os.PathLike[str], kind: str = "script") -> None:
    """Raise ConfigError if a file with code is not in an allowed folder; links are resolved. ``kind`` is its kind."""
    if (text := os.environ.get(VARIABLE)) is None:
        return
    folders = [Path(part).resolve() for part in text.split(os.pathsep) if part]
    if not any(Path(path).resolve().is_relative_to(folder) for folder in folders):
        raise errors.ConfigError(
            f"The {kind} {os.fspath(path)} may not be run: {VARIABLE} only allows files in "
            f"{', '.join(map(str, folders)) or 'no folder'}. Move it there, or start the worker with "
            f"{VARIABLE}=<folder>:<folder> (a deployment: job_variables.env)."
        )


def check_command(command: Sequence[str]) -> None:
    """Raise ConfigError if the program of a command, or its interpreter's script, is not in an allowed folder."""
    import shutil  # slow to import, and every command imports this module

    program = shutil.which(command[0])
    if program is None:
        return  # the caller reports a program that does not exist
    # An interpreter is outside of the folder, as a rule: its script decides, if the first argument is one.
    if len(command) > 1 and _INTERPRETER.fullmatch(Path(program).name) and Path(command[1]).is_file():
        check_file(command[1])
    else:
        check_file(program, "command")


def ask_for(run_id: str, scripts: Sequence[str], commands: Sequence[Sequence[str]], *, allowed: bool) -> None:
    """Raise ConfigError if scripts or commands of a stored run may not run, since neither caller nor folder allows it.

    Anyone who can write to a store can put any script or command into a run.
    """
    requests = [f"the script {script}" for script in scripts]
    requests += [f"the command {shlex.join(command)}" for command in commands]
    if requests and not allowed and VARIABLE not in os.environ:
        raise errors.ConfigError(
            f"Run {run_id} would run {' and '.join(requests)} on this machine, and anyone with write access to the "
            "store can put such code there. Nothing was run. Inspect it, then allow it: --allow-scripts (in Python and "
            "flows: allow_scripts=True)."
        )
    if not allowed:
        for script in scripts:
            check_file(script)
        for command in commands:
            check_command(command)
