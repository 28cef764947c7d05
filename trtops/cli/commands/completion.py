"""Print a completion script for bash, zsh or fish, made from the commands and options that there are.

The script asks for ids of runs and names of experiments when TAB is pressed: `trtops completion runs` prints them.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator

from trtops.cli import registry
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import LOGGING, say
from trtops.cli.main import load
from trtops.errors import TrtopsError

_WHAT = ("bash", "zsh", "fish", "runs", "experiments")
GROUPS = (
    Group(
        "shell",
        (Flag(names=("shell",), choices=_WHAT, help="the shell; or names in the store, which scripts ask for"),),
    ),
)
EXAMPLES = (
    "source <(trtops completion bash)",
    "trtops completion zsh > ~/.zfunc/_trtops",
    "trtops completion fish > ~/.config/fish/completions/trtops.fish",
)


def plan(args: Asked) -> str:
    """The shell."""
    return str(args.shell)


def execute(plan: str) -> int:
    """Print the script, or the names."""
    if plan in ("runs", "experiments"):
        from trtops.tracking.store import existing_tracker  # imports MLflow, which the scripts do not need

        with contextlib.suppress(TrtopsError):  # a message in the middle of a line that is being typed helps nobody
            found = existing_tracker().find(limit=200)
            names = [f"{i.id}\t{i.name}".rstrip() for i in found] if plan == "runs" else {i.experiment for i in found}
            say("\n".join(names))
    else:
        say(fish_script() if plan == "fish" else script(plan))
    return 0


def script(shell: str) -> str:
    """The completion script: words by what was typed before them, and files where an option takes one."""
    cases = [
        f'        "{" ".join(folder)}") words="{" ".join(registry.below(folder))}";;'
        for folder in ((), *registry.FOLDERS)
    ]
    cases += [f'        "{" ".join(path)}") words="{" ".join(options(path))}";;' for path in registry.COMMANDS]
    body = "\n".join(cases)
    picks = "\n".join(f'        "{place}") picks="{words}";;' for place, words in _words_of_options())
    asked = "\n".join(
        f'        "{place}") picks="$(trtops completion {what} 2>/dev/null | cut -f1)";;'
        for place, what in _names_of_options()
    )
    text = f"""_trtops() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}" path="" words="" picks="" i
    for ((i = 1; i < COMP_CWORD; i++)); do
        case "$path ${{COMP_WORDS[i]}}" in
            {"|".join(f'" {" ".join(p)}"' for p in (*registry.FOLDERS, *registry.COMMANDS))}) path="$path ${{COMP_WORDS[i]}}";;
            *) break;;
        esac
    done
    case "${{path# }}" in
{body}
    esac
    case "${{path# }} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{picks}
{asked}
    esac
    case "$word" in
        -*) COMPREPLY=($(compgen -W "$words" -- "$word"));;
        *)  [[ -n $picks ]] && {{ COMPREPLY=($(compgen -W "$picks" -- "$word")); return; }}
            [[ $words != *--* ]] && {{ COMPREPLY=($(compgen -W "$words" -- "$word")); return; }}
            COMPREPLY=($(compgen -f -- "$word"));;
    esac
}}
complete -o filenames -F _trtops trtops"""
    if shell == "bash":
        return text
    # zsh runs a file of its fpath when TAB is first pressed, and that TAB wants its answer as well.
    first = "[[ ${funcstack[1]} == _trtops ]] && _bash_complete -o filenames -F _trtops || true"
    return f"#compdef trtops\nautoload -U +X bashcompinit && bashcompinit\n{text}\n{first}"


def options(path: registry.Path) -> list[str]:
    """The long options of a command."""
    flags = (flag for group in (*load(path).GROUPS, LOGGING) for flag in group.flags if not flag.refuse)
    return list(dict.fromkeys(name for flag in flags for name in flag.names if name.startswith("--")))


def fish_script() -> str:
    """The same for fish, which shows what each word is about."""
    lines = [_FISH]
    for folder in ((), *registry.FOLDERS):
        lines += [
            f"complete -c trtops -f -n '__trtops_is \"{' '.join(folder)}\"' -a {word} -d {shlex.quote(about)}"
            for word, about in registry.below(folder).items()
        ]
    words, names = dict(_words_of_options()), dict(_names_of_options())
    for path in registry.COMMANDS:
        at = f"complete -c trtops -n '__trtops_begins \"{' '.join(path)}\"'"
        for flag in (flag for group in (*load(path).GROUPS, LOGGING) for flag in group.flags if not flag.refuse):
            place = " ".join((*path, path[-1] if flag.positional else flag.names[0]))
            values = words.get(place, "") or (f"(trtops completion {names[place]})" if place in names else "")
            if flag.positional:
                lines += [f"{at} -a '{values}'"] if values else []
                continue
            spelled = " ".join(f"-l {name[2:]}" for name in flag.names if name.startswith("--"))
            takes = "" if flag.takes in ("switch", "count") else f" -x -a '{values}'" if values else " -r"
            lines.append(f"{at} {spelled}{takes} -d {shlex.quote(flag.help)}" if spelled else "")
    return "\n".join(line for line in lines if line)


_FISH = """function __trtops_words
    set -l words (commandline -opc)
    string join ' ' -- $words[2..-1]
end
function __trtops_is
    set -l words (__trtops_words)
    test "$words" = "$argv[1]"
end
function __trtops_begins
    set -l words (__trtops_words)
    string match -q -- "$argv[1]*" "$words"
end"""


def _words_of_options() -> Iterator[tuple[str, str]]:
    """A command and an option that takes one of some words, and these words."""
    for path in registry.COMMANDS:
        for flag in (flag for group in load(path).GROUPS for flag in group.flags if flag.choices):
            for name in flag.names if not flag.positional else (path[-1],):
                yield " ".join((*path, name)), " ".join(map(str, flag.choices or ()))


_RUNS = {"run", "runs", "resume", "parent", "candidate"}


def _names_of_options() -> Iterator[tuple[str, str]]:
    """A command and an option that takes a run or an experiment, and which of these."""
    for path in registry.COMMANDS:
        for flag in (flag for group in load(path).GROUPS for flag in group.flags if not flag.choices):
            what = "experiments" if flag.dest == "experiment" else "runs" if flag.dest in _RUNS else ""
            for name in flag.names if what else ():
                yield " ".join((*path, path[-1] if flag.positional else name)), what
