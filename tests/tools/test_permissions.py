from __future__ import annotations

from itertools import pairwise, product
from typing import get_args

import pytest

from nanotrio.errors import UsageError
from nanotrio.tools import (
    AGENT_TOOLS,
    Allow,
    Ask,
    Deny,
    PermissionMode,
    judge,
    permission_mode,
    rule_names,
    strictest,
    tighter,
    without_person,
)

MODES: tuple[PermissionMode, ...] = get_args(PermissionMode)
RANK = {Allow: 0, Ask: 1, Deny: 2}


@pytest.mark.parametrize(
    ("mode", "name", "effect", "kind"),
    [
        ("plan", "read", False, Allow),
        ("plan", "bash", True, Deny),
        ("plan", "write", True, Deny),
        ("manual", "read", False, Allow),
        ("manual", "bash", True, Ask),
        ("manual", "edit", True, Ask),
        ("manual", "my_tool", True, Ask),
        ("acceptEdits", "edit", True, Allow),
        ("acceptEdits", "write", True, Allow),
        ("acceptEdits", "bash", True, Ask),
        ("bypassPermissions", "bash", True, Allow),
    ],
)
def test_a_mode_decides_by_name_and_effect(mode: PermissionMode, name: str, effect: bool, kind: type[object]) -> None:
    assert isinstance(judge(mode, name, effect=effect), kind)


def test_agents_own_tools_run_in_every_mode_unless_denied() -> None:
    for mode, name in product(MODES, AGENT_TOOLS):
        assert judge(mode, name, effect=True) == Allow()
        assert isinstance(judge(mode, name, effect=True, denied=(name,)), Deny)


def test_denied_holds_over_allowed_and_bypass_and_allowed_does_not_open_plan() -> None:
    assert isinstance(judge("bypassPermissions", "bash", effect=True, allowed=("bash",), denied=("bash",)), Deny)
    assert judge("manual", "bash", effect=True, allowed=("bash",)) == Allow()
    assert isinstance(judge("plan", "bash", effect=True, allowed=("bash",)), Deny)


def test_a_tighter_mode_never_permits_more() -> None:
    for tight, loose in pairwise(MODES):
        assert tighter(tight, loose) == tighter(loose, tight) == tight
        for name, effect in product(("read", "write", "edit", "bash", "other"), (False, True)):
            ranks = [RANK[type(judge(mode, name, effect=effect))] for mode in (tight, loose)]
            assert ranks[0] >= ranks[1]


def test_down_a_lineage_the_strictest_verdict_holds() -> None:
    root = judge("bypassPermissions", "write", effect=True, denied=("write",))
    child = judge("bypassPermissions", "write", effect=True, allowed=("write",))
    grandchild = judge("manual", "write", effect=True)

    assert strictest([grandchild, child, root]) is root
    assert strictest([child, grandchild]) is grandchild
    assert strictest([]) == Allow()


def test_nobody_to_ask_is_a_denial_with_text() -> None:
    verdict = without_person(judge("manual", "bash", effect=True))

    assert isinstance(verdict, Deny)
    assert "bash" in verdict.text
    assert "nobody is there to ask" in verdict.text
    assert without_person(Allow()) == Allow()


def test_rules_written_for_other_agents_are_understood_or_refused() -> None:
    assert rule_names(["Bash,Read Edit", "my_tool", "bash"], "rules") == ("bash", "read", "edit", "my_tool")
    with pytest.raises(UsageError, match="has a pattern"):
        rule_names(["Bash(git:*)"], "rules")
    assert permission_mode("plan") == "plan"
    with pytest.raises(UsageError, match="unknown permission mode 'yolo'"):
        permission_mode("yolo")
