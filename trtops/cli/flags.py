"""Options as data, and the parser made of them when a command is asked for."""

from __future__ import annotations

import argparse
import itertools
import os
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from trtops.errors import near

Takes = Literal["one", "many", "any", "optional", "switch", "count", "repeat", "rest", "runner"]


class UsageError(Exception):
    """Options that contradict each other, or lack one another."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option or argument of a command.

    Attributes:
        names: Its spellings; one without dashes is an argument by place.
        help: What it does, as a phrase.
        takes: What follows it: ``one`` word, ``many`` words (one at least), ``any`` number, an ``optional`` one, nothing
            (``switch``, or ``count`` which counts), ``many`` words each time it is given (``repeat``), the ``rest`` of the
            line, or nothing or one word and its place among the runners counts (``runner``).
        to: The attribute that it sets; by its first name unless given.
        convert: Makes the value of a word; raises ``ValueError``.
        choices: The words that it takes.
        default: The value without the option.
        usual: What holds without it, in words, where the option itself has no value then: an op's own default.
        required: Whether it must be given.
        shown: What help calls the word.
        value: What a switch sets; a word that is meant, for an option of the ``optional`` kind without one.
        refuse: Why it is not carried out, and what to use instead. Such an option is known, and ends the command.
        idle: Why it has no effect. Such an option is accepted, with a warning.
    """

    names: tuple[str, ...]
    help: str
    takes: Takes = "one"
    to: str = ""
    convert: Callable[[str], Any] = str
    choices: tuple[Any, ...] | None = None
    default: Any = None
    usual: str = ""
    required: bool = False
    shown: str | None = None
    value: Any = True
    refuse: str = ""
    idle: str = ""

    @property
    def dest(self) -> str:
        """The attribute that it sets."""
        return self.to or self.names[0].lstrip("-").replace("-", "_")

    @property
    def positional(self) -> bool:
        """Whether it is an argument by place."""
        return not self.names[0].startswith("-")


@dataclass(frozen=True)
class Group:
    """Options that belong together.

    Attributes:
        title: What help calls them.
        flags: The options.
    """

    title: str
    flags: tuple[Flag, ...]

    def without(self, *names: str) -> Group:
        """The group without the options of these spellings."""
        return Group(self.title, tuple(f for f in self.flags if not set(names) & set(f.names)))


class Asked(argparse.Namespace):
    """The options of a command line. It notes which of them are read, so that a command can warn of the others."""

    def __init__(self, **values: Any) -> None:
        """Begin with these values, none read."""
        self.__dict__["_seen"] = set()
        super().__init__(**values)

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if not name.startswith("_"):
            self._seen.add(name)
        return value

    def peek(self, name: str, default: Any = None) -> Any:
        """The value of an option, without counting it as read."""
        return self.__dict__.get(name, default)

    def but(self, **others: Any) -> Asked:
        """The same options, some with other values; what is read here counts as read there."""
        changed = Asked()
        changed.__dict__.update({**self.__dict__, **others})
        return changed

    def forget(self) -> None:
        """Count no option as read."""
        self._seen.clear()

    def unseen(self, name: str) -> bool:
        """Whether an option has not been read."""
        return name not in self._seen


_NARGS = {"many": "+", "repeat": "+", "any": "*", "optional": "?", "rest": argparse.REMAINDER}


class Parser(argparse.ArgumentParser):
    """An argparse parser that names the near option when one is wrong. Exits with 2 on wrong usage."""

    def parse(self, words: Sequence[str]) -> Asked:
        """Parse all words, or exit."""
        args, left = self.parse_known_args(list(words), Asked())
        if left:
            self.error(self._unknown(left))
        args.forget()
        return args

    def _unknown(self, left: Sequence[str]) -> str:
        word = left[0].partition("=")[0]
        if not word.startswith("-"):
            return f"unexpected argument {word!r}; options that take several words end at the next option"

        known = [name for name in self._option_string_actions if name.startswith("--")]
        hint = near(word, known)
        return f"unknown option {word}. {hint if hint.startswith('Did') else f'See {self.prog} -h.'}"

    def error(self, message: str) -> NoReturn:
        """Print usage and message, and exit with 2."""
        words = re.sub(r"argument (--?[^\s:]*):", r"\1:", message)
        self.exit(2, f"{self.prog}: {words}\nTry: {self.prog} -h\n")


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with room for long option names; headings in bold on a terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(120, _terminal_width()))

    def start_section(self, heading: str | None) -> None:
        super().start_section(bold(heading) if heading else heading)

    def _format_usage(self, *args: Any, **kwargs: Any) -> str:
        text = super()._format_usage(*args, **kwargs)
        return text if len(text) < 400 else f"usage: {self._prog} [options]{self._places(args[1])}\n\n"

    def _places(self, actions: Iterable[argparse.Action]) -> str:
        return "".join(f" {a.metavar or a.dest}" for a in actions if not a.option_strings)


def _terminal_width() -> int:
    try:
        return max(40, os.get_terminal_size().columns)
    except OSError:
        return 110


def bold(text: str) -> str:
    """Text in bold, on a terminal whose user has not set ``NO_COLOR``."""
    return f"\x1b[1m{text}\x1b[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text


def without_effect(groups: Iterable[Group], args: Asked, words: Sequence[str]) -> list[str]:
    """A sentence about each option on a line that has no effect.

    Args:
        groups: The command's options.
        args: The options, after the command's plan was made of them.
        words: The line.
    """
    flags = {name: flag for group in groups for flag in group.flags for name in flag.names if name.startswith("-")}
    found = {}
    for name in (word.partition("=")[0] for word in _words_before_check(words)):
        flag = flags.get(name)
        if flag is not None and (flag.idle or args.unseen(flag.dest)):
            why = flag.idle or "nothing that this command line does uses it"
            found[flag.names[0]] = f"{name} has no effect here: {why}"
    return list(found.values())


def _words_before_check(words: Sequence[str]) -> Iterable[str]:
    """The words of a line that are not those of a command behind ``--check``."""
    return itertools.takewhile(lambda word: word not in ("--check", "--check-inference"), words)


def make_parser(prog: str, about: str, groups: Iterable[Group], examples: Sequence[str]) -> Parser:
    """A parser for one command."""
    shown = "\n".join(f"  {line}" for example in examples for line in example.splitlines())
    parser = Parser(
        prog=prog,
        description=textwrap.fill(about, min(100, _terminal_width())),
        epilog=f"{bold('examples:')}\n{shown}",
        formatter_class=_Help,
        allow_abbrev=False,
        add_help=False,
    )
    added: set[str] = set()
    sections: dict[str, argparse._ArgumentGroup] = {}
    for group in groups:
        if group.title not in sections:
            sections[group.title] = parser.add_argument_group(group.title)
        section = sections[group.title]
        for flag in group.flags:
            if flag.names[0] not in added:
                _add_flag(section, flag)
                added.update(flag.names)
    return parser


class _Runner(argparse.Action):
    """Notes a runner in its place: its kind, and the word that came with it."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        known = getattr(namespace, self.dest) or ()
        setattr(namespace, self.dest, (*known, (self.const, values if isinstance(values, str) else None)))


class _Refused(argparse.Action):
    """Ends the command with what to use instead."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.error(f"{option_string}: {self.const}")


def _add_flag(section: argparse._ArgumentGroup, flag: Flag) -> None:
    options: dict[str, Any] = {"help": _help_text(flag)}
    if flag.shown or flag.takes not in ("switch", "count", "runner"):
        word = flag.dest if flag.positional else flag.dest.replace("_", "-").upper()
        options["metavar"] = flag.shown or ("|".join(map(str, flag.choices)) if flag.choices else word)
    if flag.positional:
        options |= {"type": _word_converter(flag)}
        if flag.takes in _NARGS:
            options["nargs"] = _NARGS[flag.takes]
        section.add_argument(flag.dest, **options)
        return
    options |= {"dest": flag.dest, "default": flag.default}
    if flag.refuse:
        section.add_argument(*flag.names, action=_Refused, const=flag.refuse, nargs="?", **options)
    elif flag.takes == "switch":
        section.add_argument(*flag.names, action="store_const", const=flag.value, **options)
    elif flag.takes == "count":
        section.add_argument(*flag.names, action="count", **options)
    elif flag.takes == "runner":
        section.add_argument(*flag.names, action=_Runner, const=flag.value, nargs=None if flag.shown else 0, **options)
    else:
        _add_valued(section, flag, options)


def _add_valued(section: argparse._ArgumentGroup, flag: Flag, options: dict[str, Any]) -> None:
    options |= {"type": _word_converter(flag), "required": flag.required}
    if flag.takes in _NARGS:
        options["nargs"] = _NARGS[flag.takes]
    if flag.takes == "optional":
        options["const"] = flag.value
    if flag.takes == "repeat":
        options["action"] = "append"
    section.add_argument(*flag.names, **options)


def _word_converter(flag: Flag) -> Callable[[str], Any]:
    """A converter whose ``ValueError`` becomes the message of wrong usage, with near choices."""

    def convert(word: str) -> Any:
        try:
            value = flag.convert(word)
        except ValueError as exc:
            text = str(exc) if not str(exc).startswith(("invalid literal", "could not")) else f"{word!r} is no number"
            raise argparse.ArgumentTypeError(text) from None
        if flag.choices is not None and value not in flag.choices:
            raise argparse.ArgumentTypeError(f"{word!r} is unknown. {near(word, map(str, flag.choices))}")
        return value

    return convert


def _help_text(flag: Flag) -> str:
    text = flag.help
    if flag.refuse:
        text = f"not carried out: {flag.refuse}"
    elif flag.idle:
        text = f"{text} (no effect: {flag.idle})"
    elif flag.default not in (None, False, (), "") and flag.takes not in ("switch", "count"):
        text = f"{text} (default: {flag.default})"
    elif flag.usual:
        text = f"{text} (default: {flag.usual})"
    return text.replace("%", "%%")
