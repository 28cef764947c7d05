"""A diff in words: a summary, and a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trtops.tables import markdown_table
from trtops.tactics.findings import Suspect, TacticDiff

_RIVAL = 0.02  # probability from which a suspect is named as an alternative


def summary(found: TacticDiff) -> str:
    """The outcome in sentences."""
    counts = f"{_count_text(found.bad, 'bad build')} among {found.good + found.bad}"
    if found.conclusion == "no builds":
        return f"No build has a verdict; {_count_text(len(found.errors), 'build')} crashed or hung."
    if found.conclusion == "no bad builds":
        rate = 1 - (1 - found.confidence) ** (1 / found.good)
        sure = f"at {_percent_text(found.confidence)} confidence"
        return f"All {found.good} builds are good: {sure} fewer than {_percent_text(rate)} are bad."
    if found.conclusion == "no good builds":
        return f"All {found.bad} builds are bad, so the cause is nothing that varied. Compare with another precision."
    if found.conclusion == "no single tactic explains this":
        return f"No single tactic explains the {counts}. {_unexplained_text(found)}"
    leading = _leading_text(found)
    if found.conclusion == "not enough runs":
        return f"Not enough runs: {counts}. Most suspicious so far: {leading}. Build more, or prove it by a swap."
    if found.conclusion == "narrowed down":
        rivals = [s for i, s in enumerate(found.suspects) if i not in found.suspected and s.probability > _RIVAL]
        instead = f", or instead {'; '.join(s.describe() for s in rivals[:3])}" if rivals else ""
        return f"A choice explains the {counts}, most likely {leading}{instead}. Build more, or prove it by a swap."
    if all(found.suspects[i].probability >= found.confidence for i in found.suspected):
        return f"Culprit: {leading}. {_fit_text(found)}"
    confirmed = "; ".join(suspect.describe() for suspect in found.confirmed)
    return f"Culprit: {confirmed}. Fits best: {leading}. {_fit_text(found)}"


def markdown(found: TacticDiff, *, limit: int = 20) -> str:
    """A page: the outcome, the suspects, and the plain set difference, with at most ``limit`` rows per table."""
    parts = [f"# {found.conclusion.capitalize()}", found.summary, _number_list(found)]
    if found.suspects and found.good and found.bad:
        parts += [f"## Suspects, by {found.by}", _suspect_table(found.suspects, found.confidence, limit)]
    parts += ["## Plain set difference", "In a bad build and in no good one:"]
    rows = [[d.layer, "; ".join(c.tactic for c in d.choices)] for d in found.set_difference[:limit]]
    left_out = _left_out(len(found.set_difference) - limit, "layers")
    parts.append(markdown_table(["layer", "tactics"], rows) + left_out if rows else "Nothing.")
    if found.errors:
        parts += ["## Crashed or hung", _bullet_list(found.errors, limit)]
    return "\n\n".join(parts) + "\n"


def _leading_text(found: TacticDiff) -> str:
    assert found.explanation is not None
    clauses = found.explanation.clauses
    text = "; or ".join(" together with ".join(found.suspects[s].describe() for s in clause) for clause in clauses)
    together = ", which fail only together" if any(len(clause) > 1 for clause in clauses) else ""
    # At least this is the probability that all of them are culprits, by Bonferroni's inequality.
    doubt = sum(1 - found.suspects[suspect].probability for suspect in found.suspected)
    probability = max(1 - doubt, found.explanation.probability)
    return f"{text}{together} (probability {_probability_text(probability)})"


def _fit_text(found: TacticDiff) -> str:
    fit = found.explanation
    assert fit is not None
    has, remains = "has" if fit.good_against == 1 else "have", "remains" if fit.bad_unexplained == 1 else "remain"
    against, rest = "", ""
    if fit.good_against:
        against = f", against {_count_text(fit.good_against, 'good build')} that {has} it too"
    if fit.bad_unexplained:
        rest = f" {_count_text(fit.bad_unexplained, 'bad build')} {remains} unexplained."
    whole = f"and is the whole explanation with a probability of {_probability_text(fit.probability)}"
    return f"It explains {fit.bad_explained} of {_count_text(found.bad, 'bad build')}{against}, {whole}.{rest}"


def _unexplained_text(found: TacticDiff) -> str:
    if not found.suspects:
        return "All builds made the same choices, so the cause lies outside them: measure the noise from run to run."
    same = ""
    if found.contradicting:
        same = f"{found.contradicting} builds made the same choices as one with the opposite verdict. "
    return f"{same}A culprit, alone or in a pair, would have shown by now: measure the noise, or review the check."


def _number_list(found: TacticDiff) -> str:
    holds = "however often one looked" if found.ordered else "for one look, since the builds have no order of arrival"
    needed = f"a confirmation needs 10^{-math.log10(1 - found.confidence):.1f}"
    rows = [
        f"{found.good} good, {found.bad} bad, {len(found.errors)} crashed or hung",
        f"{len(found.varying_layers)} of {found.layers} layers vary",
        f"evidence for the best explanation: 10^{found.e_value_log10:.1f} to 1, valid {holds}; {needed}",
        f"probability that no choice decides: {_probability_text(found.p_chance)}",
    ]
    if found.confounder:
        rows.append(found.confounder)
    return _bullet_list(rows, len(rows))


def _suspect_table(suspects: tuple[Suspect, ...], confidence: float, limit: int) -> str:
    interval = f"P(bad), {_percent_text(confidence)} interval"
    head = ["layer and choice", "good", "bad", interval, "exact p", "probability"]
    rows = [
        [
            s.describe(),
            f"{s.good} of {s.good + s.good_without}",
            f"{s.bad} of {s.bad + s.bad_without}",
            f"{_percent_text(s.p_bad)} ({_percent_text(s.p_bad_low)} to {_percent_text(s.p_bad_high)})",
            f"{s.p_value:.2g}",
            _probability_text(s.probability),
        ]
        for s in suspects[:limit]
    ]
    return markdown_table(head, rows) + _left_out(len(suspects) - limit, "less suspicious")


def _left_out(count: int, what: str) -> str:
    return f"\n\n{count} more, {what}." if count > 0 else ""


def _bullet_list(items: Iterable[str], limit: int) -> str:
    listed = list(items)
    return "\n".join(f"- {item}" for item in listed[:limit]) + _left_out(len(listed) - limit, "not shown")


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g} %"


def _probability_text(probability: float) -> str:
    """A probability, never shown as 0 or 100 %, since it is inferred."""
    if probability < 0.001:
        return "under 0.1 %"
    return "over 99.9 %" if probability > 0.999 else _percent_text(probability)


def _count_text(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
