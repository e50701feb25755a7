"""Every phase is declared once, decided by conditions that are documented, and told with what to do."""

import dataclasses
import re

import pytest

from longboat_crds import conditions_page
from longboat_crds.explanations import EXPLANATIONS
from longboat_crds.generate import ROOT
from longboat_crds.phases import PHASES, rule_of
from longboat_crds.status import Phase

PAGE = (ROOT / "docs/conditions.md").read_text()


def test_every_phase_has_one_rule() -> None:
    assert sorted(rule.phase for rule in PHASES) == sorted(Phase)
    assert all(rule_of(phase).phase is phase for phase in Phase)


def test_some_phase_always_holds() -> None:
    last = PHASES[-1]
    assert (last.condition, last.wants_pods, last.has_pods) == (None, None, None)


def test_a_phase_is_decided_by_reasons_that_its_condition_may_have() -> None:
    assert not [r for r in PHASES if r.reasons and r.condition is None]
    assert all(rule.condition in EXPLANATIONS[reason].conditions for rule in PHASES for reason in rule.reasons)


def test_the_page_says_of_every_phase_when_it_holds_and_what_to_do() -> None:
    table = PAGE[PAGE.index("## Phases") : PAGE.index("## Conditions")]
    rows = [
        [cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\| `.*$", table, re.MULTILINE)
    ]
    assert [row[0] for row in rows] == [f"`{rule.phase}`" for rule in PHASES]
    assert all(len(row) == 5 and all(row) for row in rows)
    named = {row[0]: set(re.findall(r"`(\w+)`", row[2])) for row in rows}
    assert named["`Restarting`"] == {"Running", "Restarting", "HeadLost"}


@pytest.mark.parametrize("position", range(len(PHASES)))
@pytest.mark.parametrize(
    "change", [{"cure": "Pray."}, {"has_pods": True}, {"reasons": ()}, {"explained_by": ("Running",)}]
)
def test_the_page_is_stale_when_a_rule_has_changed(
    monkeypatch: pytest.MonkeyPatch, position: int, change: dict[str, object]
) -> None:
    changed = dataclasses.replace(PHASES[position], **change)
    monkeypatch.setattr(conditions_page, "PHASES", (*PHASES[:position], changed, *PHASES[position + 1 :]))
    assert (conditions_page.page() == PAGE) is (changed == PHASES[position])
