"""A diff in words: one summary, and a Markdown page."""

from __future__ import annotations

import math
from collections.abc import Iterable

from trtops.tables import markdown_table
from trtops.tactics.findings import Suspect, TacticDiff
from trtops.tactics.several import clauses_text

_RIVAL = 0.02  # guilt from which a suspect is named as an alternative


def summary(found: TacticDiff) -> str:
    """The outcome in sentences."""
    counts = f"{_count_text(found.bad, 'bad build')} among {found.good + found.bad}"
    if found.conclusion == "no builds":
        return f"No build was evaluated; {_count_text(len(found.errors), 'build')} crashed or hung."
    if found.conclusion == "no bad builds":
        builds = found.good
        rate = 1 - (1 - found.confidence) ** (1 / builds)
        return f"All {builds} builds are good: at {_percent_text(found.confidence)} confidence fewer than {_percent_text(rate)} are bad."
    if found.conclusion == "no good builds":
        return f"All {found.bad} builds are bad, so the cause is nothing that varied. Compare with another precision."
    if found.conclusion == "no single tactic explains this":
        return f"No single tactic explains the {counts}. {_unexplained_text(found)}"
    leading = _leading_text(found)
    if found.conclusion == "not enough runs":
        return f"Not enough runs: {counts}. Most suspicious so far: {leading}. {_more_builds_text(found)}"
    if found.conclusion == "narrowed down":
        others = [s.describe() for i, s in enumerate(found.suspects) if i not in found.accused and s.guilt > _RIVAL]
        rivals = f", or instead {'; '.join(others[:3])}" if others else ""
        return f"Some choice is guilty of the {counts}, most likely {leading}{rivals}. {_more_builds_text(found)}"
    if all(found.suspects[i].guilt >= found.confidence for i in found.accused):
        return f"Guilty: {leading}. {_fit_text(found)}"
    guilty = "; ".join(suspect.describe() for suspect in found.convicted)
    return f"Guilty: {guilty}. Fits best: {leading}. {_fit_text(found)}"


def markdown(found: TacticDiff, *, limit: int = 20) -> str:
    """A page for people: the outcome, the suspects, and the plain set difference.

    Args:
        found: The diff.
        limit: Rows per table; the page says how many are left out.
    """
    parts = [f"# {found.conclusion.capitalize()}", found.summary, _number_list(found)]
    if found.suspects and found.good and found.bad:
        parts += [f"## Suspects, by {found.by}", _suspect_table(found.suspects, found.confidence, limit)]
    parts += ["## Plain set difference", "Seen in a bad build and in no good one:", _set_difference_table(found, limit)]
    if found.errors:
        parts += ["## Crashed or hung", _bullet_list(found.errors, limit)]
    return "\n\n".join(parts) + "\n"


def _leading_text(found: TacticDiff) -> str:
    assert found.explanation is not None
    clauses = found.explanation.clauses
    text = clauses_text(clauses, lambda suspect: found.suspects[suspect].describe(), ";")
    together = ", which fail only together" if any(len(clause) > 1 for clause in clauses) else ""
    return f"{text}{together} (probability {_probability_text(_p_all_guilty(found))})"


def _p_all_guilty(found: TacticDiff) -> float:
    """Probability that all suspects of the explanation are among the culprits: at least this (Bonferroni's inequality)."""
    assert found.explanation is not None
    doubt = sum(1 - found.suspects[suspect].guilt for suspect in found.accused)
    return max(1 - doubt, found.explanation.probability)


def _fit_text(found: TacticDiff) -> str:
    fit = found.explanation
    assert fit is not None
    against = (
        f", against {_count_text(fit.good_against, 'good build')} that {'has' if fit.good_against == 1 else 'have'} it too"
        if fit.good_against
        else ""
    )
    rest = (
        f" {_count_text(fit.bad_unexplained, 'bad build')} {'remains' if fit.bad_unexplained == 1 else 'remain'} unexplained."
        if fit.bad_unexplained
        else ""
    )
    whole = f"and is the whole explanation with a probability of {_probability_text(fit.probability)}"
    return f"It explains {fit.bad_explained} of {_count_text(found.bad, 'bad build')}{against}, {whole}.{rest}"


def _unexplained_text(found: TacticDiff) -> str:
    if not found.suspects:
        return "All builds made the same choices, so the cause lies outside them: look at noise from run to run."
    same = (
        f"{found.contradicting} builds made the same choices as one with the opposite verdict. "
        if found.contradicting
        else ""
    )
    return (
        f"{same}A culprit, alone or in a pair, would have shown by now: look at noise from run to run, or at the check."
    )


def _more_builds_text(found: TacticDiff) -> str:
    if found.more_builds is None:
        return "How many more builds it takes cannot be predicted; a proof by swap may be quicker."
    about = f"About {found.more_builds} more {'build' if found.more_builds == 1 else 'builds'} should decide."
    if found.ordered:
        return about
    return f"{about} The order of arrival is unknown, so look again only then: every look can mistake chance for guilt."


def _number_list(found: TacticDiff) -> str:
    holds = "however often one looked" if found.ordered else "for one look, since the builds have no order of arrival"
    needed = -math.log10(1 - found.confidence)
    rows = [
        f"{found.good} good, {found.bad} bad, {len(found.errors)} crashed or hung",
        f"{len(found.varying_layers)} of {found.layers} layers vary",
        f"evidence for the best explanation: 10^{found.e_value_log10:.1f} to 1, valid {holds}; a conviction needs 10^{needed:.1f}",
        f"probability that no choice is guilty: {_probability_text(found.p_innocent)}",
        f"for comparison, an exact test at one look, corrected for all single choices and pairs: p = {found.p_value:.2g}",
    ]
    if found.confounder:
        rows.append(found.confounder)
    return _bullet_list(rows, len(rows))


def _suspect_table(suspects: tuple[Suspect, ...], confidence: float, limit: int) -> str:
    head = [
        "layer and choice",
        "good",
        "bad",
        f"P(bad), {_percent_text(confidence)} interval",
        "exact p",
        "p, corrected for single choices",
        "guilt",
    ]
    rows = [
        [
            s.describe(),
            f"{s.good} of {s.good + s.good_without}",
            f"{s.bad} of {s.bad + s.bad_without}",
            f"{_percent_text(s.p_bad)} ({_percent_text(s.p_bad_low)} to {_percent_text(s.p_bad_high)})",
            f"{s.p_value:.2g}",
            f"{s.p_corrected:.2g}",
            _probability_text(s.guilt),
        ]
        for s in suspects[:limit]
    ]
    return markdown_table(head, rows) + _left_out(len(suspects) - limit, "less suspicious")


def _set_difference_table(found: TacticDiff, limit: int) -> str:
    if not found.set_difference:
        return "Nothing."
    rows = [[d.layer, "; ".join(c.tactic for c in d.choices)] for d in found.set_difference[:limit]]
    return markdown_table(["layer", "tactics"], rows) + _left_out(len(found.set_difference) - limit, "layers")


def _left_out(count: int, what: str) -> str:
    return f"\n\n{count} more, {what}." if count > 0 else ""


def _bullet_list(items: Iterable[str], limit: int) -> str:
    listed = list(items)
    return "\n".join(f"- {item}" for item in listed[:limit]) + _left_out(len(listed) - limit, "not shown")


def _percent_text(share: float) -> str:
    return f"{100 * share:.3g} %"


def _probability_text(probability: float) -> str:
    """A probability, never shown as 0 or 100 %: it was inferred, and so is not certain."""
    if probability < 0.001:
        return "under 0.1 %"
    return "over 99.9 %" if probability > 0.999 else _percent_text(probability)


def _count_text(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
