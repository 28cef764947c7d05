"""Print a completion script for bash, zsh or fish. It asks trtops for the words that can follow when TAB is pressed.

`trtops completion words LINE ...` prints these words, one per line.
"""

from __future__ import annotations

from trtops.cli import registry
from trtops.cli.flags import Flag, Group, Options, flag, flags_of
from trtops.cli.jobs import Job, tracker
from trtops.cli.logs import LOGGING, say
from trtops.cli.main import find_command, load
from trtops.errors import TrtopsError

GROUPS = (
    Group(
        "shell",
        (
            flag(
                "shell",
                "the shell; words prints the words that can follow a line",
                choices=("bash", "zsh", "fish", "words"),
            ),
            flag("line", "the words of that line", takes="rest", shown="LINE ..."),
        ),
    ),
)
EXAMPLES = (
    "source <(trtops completion bash)",
    "trtops completion zsh > ~/.zfunc/_trtops",
    "trtops completion fish > ~/.config/fish/completions/trtops.fish",
)

_BASH = """_trtops() {
    local IFS=$'\\n' words
    words="$(command trtops completion words "${COMP_WORDS[@]:1:COMP_CWORD-1}" 2>/dev/null)"
    COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
}
complete -o default -F _trtops trtops"""
# zsh runs a file of its fpath when TAB is first pressed, and this TAB needs its answer as well.
_FIRST = "[[ ${funcstack[1]} == _trtops ]] && _bash_complete -o default -F _trtops || true"
_ZSH = f"#compdef trtops\nautoload -U +X bashcompinit && bashcompinit\n{_BASH}\n{_FIRST}"
_FISH = "complete -c trtops -a '(trtops completion words (commandline -opc)[2..-1] 2>/dev/null)'"
_SCRIPTS = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}
_RUNS = ("run", "runs", "resume", "parent", "candidate")


def plan(args: Options) -> Job:
    """Return the job."""
    return Job(call=_print, args=(args.shell, list(args.line)))


def _print(shell: str, line: list[str]) -> int:
    say(_SCRIPTS[shell] if shell != "words" else "\n".join(following(line)))
    return 0


def following(line: list[str]) -> list[str]:
    """Return the words that can follow a line; none where a file name or a value is expected."""
    path, words = find_command(line)
    if path not in registry.COMMANDS:
        return [] if words else list(registry.below(path))
    flags = [flag for _, flag in flags_of((*load(path).groups, LOGGING)) if not flag.refuse]
    last = next((place for place in range(len(words) - 1, -1, -1) if words[place].startswith("-")), None)
    if last is not None:
        current = next((flag for flag in flags if words[last] in flag.names), None)
        several = len(words) - 1 == last or (current is not None and current.takes in ("many", "any", "repeat"))
        if current is not None and several and current.takes not in ("switch", "count", "runner", "rest"):
            return _values(current)
    options = [name for flag in flags for name in flag.names if name.startswith("--")]
    return [word for flag in flags if flag.positional for word in _values(flag)] + options


def _values(flag: Flag) -> list[str]:
    """Return the words that an option accepts, where they are known."""
    if flag.choices:
        return list(map(str, flag.choices))
    if flag.dest != "experiment" and flag.dest not in _RUNS:
        return []
    try:
        runs = tracker("reads", None).find(limit=200)
    except TrtopsError:
        return []
    return list(dict.fromkeys(run.experiment if flag.dest == "experiment" else run.id for run in runs))
