"""The result of a diff: records saved with the campaign, a summary in words, and a Markdown page."""

import math
from dataclasses import dataclass
from itertools import chain
from typing import Literal, TypeAlias

from trtops.record import Record
from trtops.tables import counted, listed, markdown_table
from trtops.tactics.record import TacticOption
from trtops.tactics.table import By

Conclusion: TypeAlias = Literal[
    "confirmed",
    "narrowed down",
    "not enough runs",
    "no single tactic explains this",
    "no bad builds",
    "no good builds",
    "no builds",
]

CLEARED = 0.7
"""Posterior probability of chance from which a campaign may stop searching for a culprit."""
_RIVAL = 0.02  # probability from which another suspect is named as an alternative to the explanation


@dataclass(frozen=True, kw_only=True)
class LayerChoice(Record):
    """A layer and its choice in words; None if a build is suspected for lacking the layer."""

    layer: str
    choice: str | None


@dataclass(frozen=True, kw_only=True)
class Suspect(Record):
    """Choices of the same builds, indistinguishable by verdicts."""

    choices: tuple[LayerChoice, ...]  # the layers and their choices; empty for a setting that shows in no layer
    # Settings that decide them: in all builds, the choices occur if and only if the settings have these values.
    # Empty if no settings do.
    settings: tuple[tuple[str, str], ...] = ()
    good: int  # good builds that have them
    bad: int  # bad builds that have them
    probability: float  # posterior probability of being among the culprits

    def describe(self) -> str:
        """The suspect in words, with at most four layers."""
        shown = listed((f"{c.layer}: {c.choice or 'layer absent'}" for c in self.choices), 4, "; ")
        if not self.settings:
            return shown
        setting = ", ".join(f"{name}={value}" for name, value in self.settings)
        return f"{setting} ({shown})" if shown else setting


@dataclass(frozen=True, kw_only=True)
class Explanation(Record):
    """The most probable culprits.

    ``clauses`` are positions in :attr:`TacticDiff.suspects`. A build is expected to be bad if it has all suspects of
    any clause: ``((0,),)`` is one culprit, ``((0, 1),)`` two that fail only together, ``((0,), (1,))`` either of two.
    The posterior probability is that of exactly these; a few bad builds leave open whether it needs something else that
    all of them happen to have. ``good_against`` good builds are expected to be bad.
    """

    clauses: tuple[tuple[int, ...], ...]
    probability: float
    bad_explained: int
    good_against: int


@dataclass(frozen=True, kw_only=True)
class SetDifference(Record):
    """Polygraphy's plain difference for one layer: choices of bad builds absent from all good ones."""

    layer: str
    choices: tuple[TacticOption, ...]


@dataclass(frozen=True, kw_only=True)
class TacticDiff(Record):
    """The comparison of good and bad builds."""

    by: By
    # Whether the builds were in their order of arrival. If not, as with loose files, the evidence holds for one
    # look at a number of builds fixed beforehand.
    ordered: bool = True
    confidence: float
    conclusion: Conclusion
    good: int
    bad: int
    errors: tuple[str, ...] = ()  # names of the builds that crashed or hung; they are no evidence
    layers: int
    varying_layers: tuple[str, ...] = ()
    # Everything that varies, the most suspicious first; every varying layer and choice is in one of them.
    suspects: tuple[Suspect, ...] = ()
    explanation: Explanation | None = None  # the most probable culprits; None if nothing varies or all verdicts agree
    # Decimal logarithm of the evidence; a confirmation needs ``-log10(1 - confidence)``. For ordered builds it is
    # valid however often one has looked.
    e_value_log10: float = 0.0
    p_chance: float = 0.5  # posterior probability that no choice decides; one half before there is any evidence
    thorough: bool = False  # whether there are enough verdicts to confirm even two choices that fail only together
    # Another cause that bad builds go with, in words: time, or a machine. The evidence is that in addition to it.
    confounder: str = ""
    # The plain set difference, layer by layer; always by tactic and formats, as in Polygraphy.
    set_difference: tuple[SetDifference, ...] = ()

    @property
    def confirmed(self) -> tuple[Suspect, ...]:
        """Suspects at or above the confidence; empty unless the conclusion is ``confirmed``."""
        if self.conclusion != "confirmed":
            return ()
        return tuple(suspect for suspect in self.suspects if suspect.probability >= self.confidence)

    @property
    def _explained(self) -> tuple[int, ...]:
        """Positions of the suspects named by the explanation, each once."""
        clauses = self.explanation.clauses if self.explanation else ()
        return tuple(dict.fromkeys(chain.from_iterable(clauses)))

    @property
    def decided(self) -> bool:
        """True if a campaign with a diff after every build can stop; builds without an order never decide."""
        # To stop without a culprit, chance must be more probable than for a single look, since an early lull in the
        # evidence must not end the search.
        cleared = self.conclusion == "no single tactic explains this" and self.p_chance > CLEARED
        return self.ordered and (self.conclusion == "confirmed" or (cleared and self.thorough))

    @property
    def summary(self) -> str:
        """The outcome in sentences."""
        counts = f"{counted(self.bad, 'bad build')} among {self.good + self.bad}"
        if self.conclusion == "no builds":
            return f"No build has a verdict; {counted(len(self.errors), 'build')} crashed or hung."
        if self.conclusion == "no bad builds":
            # At this rate of bad builds, as many good ones in a row have a probability of 1 - confidence.
            rate = 1 - (1 - self.confidence) ** (1 / self.good)
            sure = f"at {_percent_text(self.confidence)} confidence"
            return f"All {self.good} builds are good: {sure} fewer than {_percent_text(rate)} are bad."
        if self.conclusion == "no good builds":
            return (
                f"All {self.bad} builds are bad, so nothing that varied is the cause. What all of them chose may be, "
                "unless their tactics were drawn at random: then the precision is the cause, or the model."
            )
        if self.conclusion == "no single tactic explains this":
            same = "" if self.suspects else " All builds made the same choices."
            return f"No single tactic explains the {counts}.{same} Is the check repeatable?"
        leading = self._leading_text()
        if self.conclusion == "not enough runs":
            return f"Not enough runs: {counts}. Most suspicious so far: {leading}. Build more, or prove it by a swap."
        if self.conclusion == "narrowed down":
            rivals = [s for i, s in enumerate(self.suspects) if i not in self._explained and s.probability > _RIVAL]
            instead = f", or instead {'; '.join(s.describe() for s in rivals[:3])}" if rivals else ""
            return f"A choice explains the {counts}, most likely {leading}{instead}. Build more, or prove it by a swap."
        fit = self.explanation
        assert fit is not None
        # The evidence may confirm one of two choices, and leave open which the other one is.
        against = f", against {counted(fit.good_against, 'good build')} with it" if fit.good_against else ""
        certain = all(self.suspects[i].probability >= self.confidence for i in self._explained)
        named = leading if certain else f"{'; '.join(s.describe() for s in self.confirmed)}. Fits best: {leading}"
        return (
            f"Culprit: {named}. It explains {fit.bad_explained} of {counted(self.bad, 'bad build')}{against}. "
            "Builds do not show what else it needs: prove it by a swap."
        )

    def _leading_text(self) -> str:
        assert self.explanation is not None
        clauses = self.explanation.clauses
        text = "; or ".join(" together with ".join(self.suspects[s].describe() for s in clause) for clause in clauses)
        together = ", which fail only together" if any(len(clause) > 1 for clause in clauses) else ""
        # At least this is the probability that all of them are culprits, by Bonferroni's inequality.
        doubt = sum(1 - self.suspects[suspect].probability for suspect in self._explained)
        probability = max(1 - doubt, self.explanation.probability)
        return f"{text}{together} (probability {_probability_text(probability)})"

    def markdown(self, *, limit: int = 20) -> str:
        """A page: the outcome, the suspects, and the plain set difference, with at most ``limit`` rows per table."""
        holds = (
            "however often one looked" if self.ordered else "for one look, since the builds have no order of arrival"
        )
        lines = [
            f"# {self.conclusion.capitalize()}",
            "",
            self.summary,
            "",
            f"- {self.good} good, {self.bad} bad, {len(self.errors)} crashed or hung",
            f"- {len(self.varying_layers)} of {self.layers} layers vary",
            f"- evidence for the best explanation: 10^{self.e_value_log10:.1f} to 1, valid {holds}; "
            f"a confirmation needs 10^{-math.log10(1 - self.confidence):.1f}",
            f"- probability that no choice decides: {_probability_text(self.p_chance)}",
        ]
        if self.confounder:
            lines.append(f"- {self.confounder}")
        if self.suspects and self.good and self.bad:
            rows = []
            for suspect in self.suspects[:limit]:
                counts = f"{suspect.good} of {self.good}", f"{suspect.bad} of {self.bad}"
                rows.append([suspect.describe(), *counts, _probability_text(suspect.probability)])
            head = ["layer and choice", "good", "bad", "probability"]
            lines += ["", f"## Suspects, by {self.by}", "", markdown_table(head, rows)]
            lines += _left_out(len(self.suspects) - limit, "less suspicious")
        lines += ["", "## Plain set difference", "", "In a bad build and in no good one:", ""]
        rows = [[d.layer, "; ".join(c.tactic for c in d.choices)] for d in self.set_difference[:limit]]
        lines.append(markdown_table(["layer", "tactics"], rows) if rows else "Nothing.")
        lines += _left_out(len(self.set_difference) - limit, "layers")
        if self.errors:
            lines += ["", "## Crashed or hung", "", *(f"- {name}" for name in self.errors[:limit])]
            lines += _left_out(len(self.errors) - limit, "not shown")
        return "\n".join(lines) + "\n"


def _left_out(count: int, description: str) -> list[str]:
    return ["", f"{count} more, {description}."] if count > 0 else []


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g} %"


def _probability_text(probability: float) -> str:
    """A probability, never shown as 0 or 100 %, since it is inferred."""
    if probability < 0.001:
        return "under 0.1 %"
    return "over 99.9 %" if probability > 0.999 else _percent_text(probability)
