"""The command ``trtops completion``."""

from trtops.cli import registry
from trtops.cli.flags import Group, Options, flag, flags_of
from trtops.cli.jobs import direct_command
from trtops.cli.logs import LOGGING, say
from trtops.cli.main import find_command, load

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


@direct_command(
    Group(
        "shell",
        flag("shell {bash,zsh,fish,words}", "the shell; words prints the words that can follow a line"),
        flag("line", "the words of that line", takes="rest", shown="LINE ..."),
    ),
    examples=("source <(trtops completion bash)", "trtops completion zsh > ~/.zfunc/_trtops"),
)
def completion(args: Options) -> int:
    """Print a completion script for bash, zsh or fish.

    It asks trtops for the words that can follow when TAB is pressed. `trtops completion words LINE ...` prints these
    words, one per line.
    """
    say("\n".join(_words_after(list(args.line))) if args.shell == "words" else _SCRIPTS[args.shell])
    return 0


def _words_after(line: list[str]) -> list[str]:
    """Return the words that can follow a line; none where a file name or a value is expected."""
    path, words = find_command(line)
    if path not in registry.COMMANDS:
        return [] if words else list(registry.below(path))
    flags = [flag for _, flag in flags_of((*load(path).groups, LOGGING)) if not flag.refuse]
    last = next((place for place in range(len(words) - 1, -1, -1) if words[place].startswith("-")), None)
    current = next((flag for flag in flags if last is not None and words[last] in flag.names), None)
    several = current is not None and current.takes in ("many", "any", "repeat")
    if current is not None and (several or (words[-1] in current.names and current.takes in ("one", "optional"))):
        return list(map(str, current.choices or ()))
    choices = [str(word) for flag in flags if flag.positional for word in flag.choices or ()]
    return choices + [name for flag in flags for name in flag.names if name.startswith("--")]
