"""Print a completion script for bash or zsh, made from the commands and options that there are."""

from __future__ import annotations

from collections.abc import Iterator

from trtops.cli import registry
from trtops.cli.flags import Asked, Flag, Group
from trtops.cli.logs import LOGGING, say
from trtops.cli.main import load

GROUPS = (Group("shell", (Flag(names=("shell",), choices=("bash", "zsh"), help="bash or zsh"),)),)
EXAMPLES = ("source <(trtops completion bash)", "trtops completion zsh > ~/.zfunc/_trtops")


def plan(args: Asked) -> str:
    """The shell."""
    return str(args.shell)


def execute(plan: str) -> int:
    """Print the script."""
    say(script(plan))
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


def _words_of_options() -> Iterator[tuple[str, str]]:
    """A command and an option that takes one of some words, and these words."""
    for path in registry.COMMANDS:
        for flag in (flag for group in load(path).GROUPS for flag in group.flags if flag.choices):
            for name in flag.names if not flag.positional else (path[-1],):
                yield " ".join((*path, name)), " ".join(map(str, flag.choices or ()))
