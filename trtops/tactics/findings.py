"""The result of a diff, as records that are saved with the campaign."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtops.record import Record
from trtops.tactics.choice_keys import By
from trtops.tactics.table import Choice

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


@dataclass(frozen=True, kw_only=True)
class LayerChoice(Record):
    """A layer and its choice.

    Attributes:
        layer: The layer's name.
        choice: Its tactic, formats or precision in words; None where a build is suspected for lacking the layer.
    """

    layer: str
    choice: str | None


@dataclass(frozen=True, kw_only=True)
class Suspect(Record):
    """Choices that occur in the same builds, so that no verdict can tell them apart.

    Attributes:
        choices: The layers and their choices; empty for a setting that shows in no layer.
        settings: Settings that decide them: in all builds, the choices occur if and only if the settings have these
            values. Empty if no settings do.
        good: Good builds that have them.
        bad: Bad builds that have them.
        good_without: Good builds that do not.
        bad_without: Bad builds that do not.
        p_bad: Share of bad builds among those that have them.
        p_bad_low: Lower end of its interval at the diff's confidence, by Jeffreys' prior.
        p_bad_high: Its upper end.
        p_value: Fisher's exact test, one-sided: builds that have them are bad more often.
        probability: Posterior probability of being among the culprits.
    """

    choices: tuple[LayerChoice, ...]
    settings: tuple[tuple[str, str], ...] = ()
    good: int
    bad: int
    good_without: int
    bad_without: int
    p_bad: float
    p_bad_low: float
    p_bad_high: float
    p_value: float
    probability: float

    def describe(self) -> str:
        """The suspect in words, with at most four layers."""
        layers = [f"{c.layer}: {c.choice or 'layer absent'}" for c in self.choices]
        shown = "; ".join(layers[:4]) + (f" and {len(layers) - 4} more layers" if len(layers) > 4 else "")
        if not self.settings:
            return shown
        setting = ", ".join(f"{name}={value}" for name, value in self.settings)
        return f"{setting} ({shown})" if layers else setting


@dataclass(frozen=True, kw_only=True)
class Explanation(Record):
    """The most probable culprits.

    Attributes:
        clauses: Positions in :attr:`TacticDiff.suspects`. A build is expected to be bad if it has all suspects of any
            clause: ``((0,),)`` is one culprit, ``((0, 1),)`` two that fail only together, ``((0,), (1,))`` either of
                two.
        probability: Posterior probability that it is right, and complete: a few bad builds leave open whether it needs
            something else that all of them happen to have, even where the culprits themselves are certain
            (:attr:`Suspect.probability`).
        bad_explained: Bad builds that it expects to be bad.
        bad_unexplained: Bad builds that it does not.
        good_against: Good builds that it expects to be bad.
    """

    clauses: tuple[tuple[int, ...], ...]
    probability: float
    bad_explained: int
    bad_unexplained: int
    good_against: int


@dataclass(frozen=True, kw_only=True)
class SetDifference(Record):
    """Polygraphy's plain difference for one layer: its choices in bad builds that no good build has."""

    layer: str
    choices: tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True)
class TacticDiff(Record):
    """The comparison of good and bad builds.

    Attributes:
        by: What was compared.
        ordered: Whether the builds were in their order of arrival. If not, as with loose files, the evidence holds for
            one look at a number of builds fixed beforehand.
        confidence: What a confirmation needs.
        conclusion: The outcome in a few fixed words.
        summary: The outcome in sentences.
        good: Number of good builds.
        bad: Number of bad builds.
        errors: Names of the builds that crashed or hung; they are no evidence.
        layers: Number of layers.
        varying_layers: Names of the layers whose choices differ between builds.
        suspects: Everything that varies, the most suspicious first; every varying layer and choice is in one of them.
        explanation: The most probable culprits; None if nothing varies or all verdicts agree.
        e_value_log10: Decimal logarithm of the evidence; a confirmation needs ``-log10(1 - confidence)``. For ordered
            builds it is valid however often one has looked.
        p_chance: Posterior probability that no choice decides; one half before there is any evidence.
        thorough: Whether there are enough verdicts to confirm even two choices that fail only together.
        confounder: Another cause that bad builds go with, in words: time, or a machine. The evidence is that in
            addition to it.
        contradicting: Builds that made the same choices as another one of the opposite verdict.
        set_difference: The plain set difference, layer by layer; always by tactic and formats, as in Polygraphy.
    """

    by: By
    ordered: bool = True
    confidence: float
    conclusion: Conclusion
    summary: str = ""
    good: int
    bad: int
    errors: tuple[str, ...] = ()
    layers: int
    varying_layers: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    explanation: Explanation | None = None
    e_value_log10: float = 0.0
    p_chance: float = 0.5
    thorough: bool = False
    confounder: str = ""
    contradicting: int = 0
    set_difference: tuple[SetDifference, ...] = ()

    @property
    def confirmed(self) -> tuple[Suspect, ...]:
        """The suspects whose probability reached the confidence; empty unless the conclusion is ``confirmed``."""
        if self.conclusion != "confirmed":
            return ()
        return tuple(suspect for suspect in self.suspects if suspect.probability >= self.confidence)

    @property
    def suspected(self) -> tuple[int, ...]:
        """Positions of the suspects in the explanation, each once."""
        clauses = self.explanation.clauses if self.explanation else ()
        return tuple(dict.fromkeys(i for clause in clauses for i in clause))

    @property
    def decided(self) -> bool:
        """Whether a campaign that diffs after every build can stop.

        To stop without a culprit, chance must be more probable than for a single look, since an early lull in the
        evidence must not end the search. Builds without an order never decide.
        """
        cleared = self.conclusion == "no single tactic explains this" and self.p_chance > CLEARED
        return self.ordered and (self.conclusion == "confirmed" or (cleared and self.thorough))
