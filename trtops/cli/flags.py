"""Options as data, and the argument parser made from them when a command runs."""

from __future__ import annotations

import argparse
import functools
import itertools
import re
import shutil
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NoReturn

from trtops.cli import values
from trtops.errors import near
from trtops.record import check_bounds
from trtops.terminal import bold

Takes = Literal["one", "many", "any", "optional", "switch", "count", "repeat", "rest", "runner"]


CHECKS = ("--check", "--check-inference")  # the command that checks follows, with options of its own


class UsageError(Exception):
    """Contradictory or incomplete options."""


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One option or positional argument of a command. :func:`flag` makes them."""

    names: tuple[str, ...]  # its spellings; a name without dashes is a positional argument
    help: str  # what it does, as a phrase
    # What follows it: ``one`` word, ``many`` (at least one), ``any`` number, an ``optional`` one, nothing
    # (``switch``, or ``count``, which counts), ``many`` words each time it is given (``repeat``), the ``rest`` of
    # the line, or nothing or one word with its position among the runners recorded (``runner``).
    takes: Takes = "one"
    dest: str = ""  # the attribute that it sets
    convert: Callable[[str], Any] = str  # makes the value of a word; raises ``ValueError``
    choices: tuple[Any, ...] | None = None
    default: Any = None
    usual: str = ""  # the default shown in help, where the option itself has none: that of the op
    required: bool = False
    shown: str | None = None  # what help calls the word
    # Bounds of its numbers, as in the metadata of a config's field (trtops.record.check_bounds).
    bounds: Mapping[str, Any] = field(default_factory=dict)
    file: str = ""  # whether its words are paths that the command ``reads``, ``writes``, or writes ``weights`` to
    continues: str = ""  # attributes of options whose file it may replace
    value: Any = True  # what a switch sets; the implied word of an ``optional`` one
    # Why it is not supported, and what to use instead. Such an option ends the command.
    refuse: str = ""
    # Why it has no effect. Such an option is accepted with a warning.
    idle: str = ""
    # Attributes of other options: without one of ``needs``, or with one of ``unless``, this one has no effect.
    needs: str = ""
    unless: str = ""
    # The value that the next word implies, which is that word or comes before it; None for the usual rules.
    single: Callable[[str], str | None] | None = None
    derived: bool = False  # whether it stands for a config's field; it gives way to an explicit option of the same name

    @property
    def positional(self) -> bool:
        """Whether it is a positional argument."""
        return not self.names[0].startswith("-")


_TAKES: Mapping[str, Takes] = {"+": "many", "*": "any", "?": "optional"}


def flag(usage: str, help: str, *, to: str = "", **settings: Any) -> Flag:
    """Return an option from how it is used.

    Args:
        usage: Its spellings and what follows them, such as ``-n --limit N``, ``--plugins FILE+`` or ``model_file?``:
            ``+`` is one or more, ``*`` any number, ``?`` at most one. The word decides how values are read
            (``values.READERS``); ``{trt,onnx}`` lists the words that it accepts, ``FILE[:load_data]`` is a script and
            its function. Nothing after the spellings makes a switch.
        help: What it does, as a phrase.
        to: The attribute that it sets; its first long spelling by default.
        settings: Further fields of :class:`Flag`, and bounds of its numbers: ``least``, ``most``, ``infinite``.
    """
    bounds = {name: settings.pop(name) for name in ("least", "most", "infinite") if name in settings}
    words = usage.split()
    names = [word for word in words if word.startswith("-")]
    if not names:
        names, words = [words[0].rstrip("+*?")], words[1:] if len(words) > 1 else words
    shown = words[-1] if words[-1] != names[-1] else None
    if shown is None and names[0].startswith("-"):
        settings.setdefault("takes", "switch")
    elif shown is not None and shown[-1] in _TAKES:
        settings.setdefault("takes", _TAKES[shown[-1]])
        shown = shown[:-1]
    if shown is not None and (script := re.fullmatch(r"FILE\[:(\w*)\]", shown)):
        settings["convert"], shown = values.script(script[1]), "FILE[:FUNCTION]"
    if shown is not None and shown.startswith("{"):
        settings["choices"] = tuple(shown[1:-1].split(","))
    elif names[0].startswith("-"):
        settings.setdefault("shown", shown)
    settings.setdefault("convert", values.READERS.get(str(shown), str))
    word = str(settings.get("shown", shown))
    if word in ("FILE", "FILE[:FUNCTION]", "FOLDER", "PATH", "LIST") or word.endswith("@FILE") or "model_file" in names:
        is_output = any(name == "--output" or name.startswith("--save-") for name in names)
        settings.setdefault("file", "writes" if is_output else "reads")
    if str(shown).startswith("[OUTPUT:]"):
        bounds.setdefault("infinite", True)
    settings.setdefault("bounds", bounds)
    first = next((name for name in names if not re.fullmatch("-[a-z]", name)), names[0])
    return Flag(names=tuple(names), help=help, dest=to or first.lstrip("-").replace("-", "_"), **settings)


class Group:
    """Related options, with a title for help."""

    def __init__(self, title: str, *members: Flag | Group | Callable[[], Iterable[Flag]]) -> None:
        """Take options, groups for all their options, and functions for options on demand."""
        self.title = title
        # Not yet as options: making those of a config imports its module, which most commands do not need.
        self._members = members

    @functools.cached_property
    def flags(self) -> tuple[Flag, ...]:
        """The options."""
        collected: list[Flag] = []
        for member in self._members:
            collected += (
                (member,) if isinstance(member, Flag) else member.flags if isinstance(member, Group) else member()
            )
        return tuple(collected)

    def without(self, *names: str) -> Group:
        """Return the group without the options of these spellings."""
        return Group(self.title, lambda: (f for f in self.flags if not set(names) & set(f.names)))

    def only(self, *dests: str) -> Group:
        """Return the group with only the options of these attributes."""
        return Group(self.title, lambda: (f for f in self.flags if f.dest in dests))

    def each(self, **changes: Any) -> Group:
        """Return the group with some fields of each option changed, such as ``needs="check"``."""
        return Group(self.title, lambda: (replace(f, **changes) for f in self.flags))

    def idle(self, reason: str) -> Group:
        """Return the group with all options marked as without effect, for this reason."""
        return self.each(idle=reason, convert=str, choices=None, usual="")


class Options(argparse.Namespace):
    """The options of a command line."""

    started: tuple[float, float] | None = None  # wall and CPU clock when the command began

    def __init__(self, **initial: Any) -> None:
        """Start with these values."""
        self.ignored: set[str] = set()
        super().__init__(**initial)

    def but(self, **others: Any) -> Options:
        """Return the same options, some with other values."""
        changed = Options()
        vars(changed).update({**vars(self), **others})
        return changed

    def pick(self, *names: str) -> dict[str, Any]:
        """Return the values of some options; None for those that the command does not have."""
        return {name: getattr(self, name, None) for name in names}

    def fields_of(self, config: type[Any]) -> dict[str, Any]:
        """Return the values of options called as a config's fields, where they are set; lists as tuples."""
        values = {}
        for name, value in self.pick(*(member.name for member in fields(config))).items():
            if value is not None:
                values[name] = tuple(value) if isinstance(value, list) else value
        return values

    def ignore(self, *options: Group | str) -> None:
        """Declare that options, by their attributes or as groups, have no effect on this line."""
        for option in options:
            self.ignored.update((option,) if isinstance(option, str) else (flag.dest for flag in option.flags))

    def have_effect(self, flag: Flag) -> bool:
        """Whether an option of this line has an effect, next to the others."""
        if flag.idle or flag.dest in self.ignored or (flag.needs and not self._has(flag.needs)):
            return False
        return not (flag.unless and self._has(flag.unless))

    def _has(self, names: str) -> bool:
        return any(value not in (None, "", ()) for value in self.pick(*names.split()).values())


class Parser(argparse.ArgumentParser):
    """An argument parser with suggestions for wrong options. Exits with 2 on wrong usage."""

    extend: Callable[[Parser], None] | None = None  # adds the options of installed extensions
    abbreviable: Callable[[], Collection[str]] = tuple  # the options that may be cut short, as in Polygraphy
    option_names: Sequence[str] = ()  # the long ones, for suggestions
    single_values: Mapping[str, Callable[[str], str | None]] = {}  # of options, by their spellings
    words: Sequence[str] = ()  # the last line parsed, with its abbreviated options written out
    written_out: Mapping[str, str] = {}  # these options, by what the line had

    def parse(self, words: Sequence[str]) -> Options:
        """Parse all words, or exit."""
        # Extensions and options that may be cut short are searched only here, since that takes a while.
        if self.extend is not None and self._unknown_options(words):
            self.extend(self)
        self.written_out = self._full_options(words)
        self.words = self._with_single_values([self.written_out.get(word, word) for word in words])
        args, left = self.parse_known_args(self.words, Options())
        if left:
            word = left[0].partition("=")[0]
            if not word.startswith("-"):
                self.error(f"unexpected argument {word!r}; options that take several words end at the next option")
            names = self.option_names
            meant = "--" + (left[0].partition("=")[2] or "".join(left[1:2]))  # --precision fp16 means --fp16
            hint = near(meant if meant in names else word, names)
            self.error(f"unknown option {word}. {hint if hint.startswith('Did') else f'See {self.prog} -h.'}")
        return args

    def _unknown_options(self, words: Sequence[str]) -> list[str]:
        """Return the words that look like options, without those of this command."""
        before_check = itertools.takewhile(lambda word: word not in CHECKS, words)
        names = self._option_string_actions
        return [w for w in before_check if re.match("--[a-z]|-[a-z]$", w) and w.partition("=")[0] not in names]

    def _full_options(self, words: Sequence[str]) -> dict[str, str]:
        """Return abbreviated options, with their values after a `=`, and the same with the option written out."""
        written_out = {}
        unknown = set(self._unknown_options(words))
        for word, following in zip(words, [*words[1:], ""]):
            name, separator, value = word.partition("=")
            # `--precision fp16` is a guess at `--fp16`.
            if word not in unknown or f"--{value or following}" in self.option_names:
                continue
            matches = [full_name for full_name in self.abbreviable() if full_name.startswith(name)]
            meanings = {self._option_string_actions[match].dest for match in matches}
            if len(meanings) > 1:
                self.error(f"option {name} is ambiguous: it could be {', '.join(matches)}")
            if meanings:
                written_out[word] = f"{matches[0]}{separator}{value}"
        return written_out

    def _with_single_values(self, words: Sequence[str]) -> list[str]:
        """Join options with the single value that the next word implies, so that further words are no values."""
        joined, position = [], 0
        while position < len(words):
            word, following = words[position], "".join(words[position + 1 : position + 2])
            value = self.single_values[word](following) if word in self.single_values else None
            joined.append(word if value is None else f"{word}={value}")
            position += 2 if value == following else 1
        return joined

    def error(self, message: str) -> NoReturn:
        """Print the message, and exit with 2."""
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\nTry: {self.prog} -h\n")


# In narrower terminals each word of a help text would have a line of its own.
_WIDTH = max(40, shutil.get_terminal_size((110, 24)).columns)


class _Help(argparse.RawDescriptionHelpFormatter):
    """Help with space for long option names; headings in bold on a terminal."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, max_help_position=30, width=min(120, _WIDTH))

    def start_section(self, heading: str | None) -> None:
        super().start_section(bold(heading) if heading else heading)


def without_effect(groups: Iterable[Group], args: Options, words: Sequence[str]) -> list[str]:
    """Return a sentence for each option of a line without effect, once the command has declared what it ignores."""
    flags = {name: flag for _, flag in flags_of(groups) for name in flag.names if name.startswith("-")}
    sentences = {}
    before_check = itertools.takewhile(lambda word: word not in CHECKS, words)
    for name in (word.partition("=")[0] for word in before_check):
        flag = flags.get(name)
        if flag is not None and not args.have_effect(flag):
            reason = flag.idle or "nothing on this command line uses it"
            sentences[flag.names[0]] = f"{name} has no effect here: {reason}"
    return list(sentences.values())


def make_parser(prog: str, about: str, groups: Sequence[Group], examples: Sequence[str]) -> Parser:
    """Return the parser of one command."""
    shown = "\n".join(f"  {line}" for example in examples for line in example.splitlines())
    parser = Parser(
        prog=prog,
        description=textwrap.fill(about, min(100, _WIDTH)),
        epilog=f"{bold('examples:')}\n{shown}",
        formatter_class=_Help,
        # An abbreviation could mean another option in the next release.
        allow_abbrev=False,
        # -h is one of the log's options, which may also stand between the words of a command.
        add_help=False,
    )
    sections: dict[str, Any] = {}
    names, places = [], ""
    single_values: dict[str, Callable[[str], str | None]] = {}
    for title, flag in flags_of(groups):
        if title not in sections:
            sections[title] = parser.add_argument_group(title)
        add_flag(sections[title], flag)
        if flag.positional:
            places += f" {flag.shown or flag.dest}"
        names += [name for name in flag.names if name.startswith("--")]
        if flag.single is not None:
            single_values.update(dict.fromkeys(flag.names, flag.single))
    parser.option_names = names
    parser.single_values = single_values
    if len(parser.format_usage()) >= 400:  # it would fill the screen
        parser.usage = f"{prog} [options]{places}"
    return parser


def flags_of(groups: Iterable[Group]) -> list[tuple[str, Flag]]:
    """Return each option once with its group's title; options derived from configs give way to explicit ones."""
    listed = [(group.title, flag) for group in groups for flag in group.flags]
    taken = {name for _, flag in listed if not flag.derived for name in flag.names}
    added: set[str] = set()
    titled_flags = []
    for title, flag in listed:
        if flag.names[0] not in added and not (flag.derived and taken & set(flag.names)):
            titled_flags.append((title, flag))
            added.update(flag.names)
    return titled_flags


# Options that `-h` shows of a command with many. `--help` shows all.
_USUAL = {
    "--input-shapes", "--load-inputs", "--data-loader-script", "--output", "--convert-to", "--experiment", "--store",
    "--trt", "--onnxrt", "--fp16", "--int8", "--calibration-cache", "--calibration-data", "--keep", "--trt-min-shapes",
    "--trt-opt-shapes", "--trt-max-shapes", "--atol", "--rtol", "--golden", "--save-outputs", "--load-outputs",
    "--save-engine", "--until", "--random-tactics", "--check", "--mode", "--minutes", "--resume", "--fold-constants",
    "--metric", "--labels", "--loss", "--latency", "--json", "--help", "--verbose",
}  # fmt: skip
_MANY = 40


def usual_options(groups: Sequence[Group]) -> tuple[tuple[Group, ...], int]:
    """The groups with the usual options, if there are many options, and the number of those left out."""
    titled_flags = flags_of(groups)
    shown = [
        (title, flag)
        for title, flag in titled_flags
        if len(titled_flags) <= _MANY or flag.positional or _USUAL & {*flag.names}
    ]
    return tuple(Group(title, flag) for title, flag in shown), len(titled_flags) - len(shown)


class _Runner(argparse.Action):
    """Records a runner at its position: its kind, and its word."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        earlier = getattr(namespace, self.dest) or ()
        setattr(namespace, self.dest, (*earlier, (self.const, values if isinstance(values, str) else None)))


class _Refused(argparse.Action):
    """Exits with a hint about the alternative."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        parser.error(f"{option_string}: {self.const}")


_NARGS = {"many": "+", "repeat": "+", "any": "*", "optional": "?", "rest": argparse.REMAINDER}


def add_flag(section: Any, flag: Flag) -> None:
    """Add an option to a section of argparse."""
    names: Sequence[str] = flag.names
    options: dict[str, Any] = {"help": _help_text(flag), "dest": flag.dest, "default": flag.default}
    if flag.shown or flag.takes not in ("switch", "count", "runner"):
        word = flag.dest if flag.positional else flag.dest.upper()
        options["metavar"] = flag.shown or ("|".join(map(str, flag.choices)) if flag.choices else word)
    if flag.refuse:
        options |= {"action": _Refused, "const": flag.refuse, "nargs": "?"}
    elif flag.takes == "switch":
        options |= {"action": "store_const", "const": flag.value}
    elif flag.takes == "count":
        options |= {"action": "count"}
    elif flag.takes == "runner":
        options |= {"action": _Runner, "const": flag.value, "nargs": None if flag.shown else 0}
    else:
        options |= {"type": _word_converter(flag)}
        if flag.takes in _NARGS:
            options["nargs"] = _NARGS[flag.takes]
        if flag.positional:
            names = (options.pop("dest"),)
        else:
            options["required"] = flag.required
        if flag.takes == "optional" and not flag.positional:
            options["const"] = flag.value
        if flag.takes == "repeat":
            options["action"] = "append"
    section.add_argument(*names, **options)


def _word_converter(flag: Flag) -> Callable[[str], Any]:
    """Return a converter with usage messages and near choices for a ``ValueError``."""

    def convert(word: str) -> Any:
        try:
            value = flag.convert(word)
            for number in value if isinstance(value, tuple) else (value,):
                check_bounds(number, flag.bounds)
            if word == "" != flag.default and (flag.file or flag.shown == "NAME") and flag.takes != "optional":
                raise ValueError("found an empty text; leave it out for the default")
        except ValueError as exc:
            # Messages of int() and float() speak of Python's literals.
            python = str(exc).startswith(("invalid literal", "could not"))
            raise argparse.ArgumentTypeError(
                f"{word!r} could not be parsed as a number" if python else str(exc)
            ) from None
        # argparse's own check of choices suggests nothing.
        if flag.choices is not None and value not in flag.choices:
            raise argparse.ArgumentTypeError(f"{word!r} is unknown. {near(word, map(str, flag.choices))}")
        return value

    return convert


def _help_text(flag: Flag) -> str:
    text = flag.help
    if flag.refuse:
        text = f"not supported: {flag.refuse}"
    elif flag.idle:
        text = f"{text} (no effect: {flag.idle})"
    elif flag.default not in (None, False, (), "") and flag.takes not in ("switch", "count"):
        text = f"{text} (default: {flag.default})"
    elif flag.usual:
        text = f"{text} (default: {flag.usual})"
    # argparse formats help with %.
    return text.replace("%", "%%")
