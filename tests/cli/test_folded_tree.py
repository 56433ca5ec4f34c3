from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from nanotrio import AgentView
from nanotrio.messages import Usage
from nanotrio_cli.folded_tree import tree_lines


def view(agent: int, parent: int = 0, *, name: str = "agent", outcome: Any = "completed", **fields: Any) -> AgentView:
    given_fields: dict[str, Any] = {
        "status": "idle",
        "spent_nano": 0,
        "unpriced": 0,
        "uncertain_nano": 0,
        "waiting_for": "",
        "task": f"task {agent}",
        **fields,
    }
    return AgentView(
        id=agent,
        name=f"{name}.{agent}",
        parent=parent,
        root=1,
        depth=0,
        model="m",
        turn=1,
        outcome=outcome,
        usage=Usage(),
        uuid="",
        created_us=0,
        updated_us=0,
        **given_fields,
    )


def texts(views: list[AgentView], **bounds: Any) -> list[str]:
    return [line.text() for line in tree_lines(views, **bounds)]


def test_a_small_tree_is_shown_whole_with_its_branches() -> None:
    views = [view(1, name="lead"), view(2, 1), view(3, 1), view(4, 2), view(5, 3)]

    assert texts(views) == [
        "lead.1  completed  $0.0000  task 1",
        "├─ agent.2  completed  $0.0000  task 2",
        "│  └─ agent.4  completed  $0.0000  task 4",
        "└─ agent.3  completed  $0.0000  task 3",
        "   └─ agent.5  completed  $0.0000  task 5",
    ]


def test_of_a_big_family_those_that_need_a_look_are_shown_and_the_rest_is_counted() -> None:
    views = [view(1), *(view(n, 1) for n in range(2, 400))]
    views[200] = view(201, 1, outcome="failed")
    views[300] = view(301, 1, outcome=None, status="running", waiting_for="a slot")

    lines = texts(views, max_children=4)

    assert lines[1:] == [
        "├─ agent.2  completed  $0.0000  task 2",
        "├─ agent.3  completed  $0.0000  task 3",
        "├─ agent.201  failed  $0.0000  task 201",
        "├─ agent.301  running  $0.0000  waits for a slot · task 301",
        "└─ … and 394 more completed",
    ]


def test_a_fold_counts_each_status_and_who_is_below() -> None:
    views = [view(1), *(view(n, 1) for n in range(2, 12)), view(12, 11), view(13, 12), view(14, 1, outcome="failed")]

    assert texts(views, max_children=0)[1] == "└─ … and 10 completed, 1 failed, with 2 below"


def test_costs_are_never_shown_as_less_than_they_are() -> None:
    views = [
        view(1, spent_nano=12_300_000),
        view(2, 1, unpriced=1),
        view(3, 1, spent_nano=1_000_000_000, unpriced=2),
        view(4, 1, uncertain_nano=5_000_000),
    ]

    assert [line.cost for line in tree_lines(views)] == [
        "$0.0123",
        "unknown",
        "$1.0000 + unknown",
        "$0.0000 (+ up to $0.0050)",
    ]


def test_names_and_tasks_cannot_write_on_the_terminal() -> None:
    (line,) = texts([view(1, name="a\x1b[2J", task="x\x1b]0;t\x07\ny")])

    assert line == "a[2J.1  completed  $0.0000  x]0;t y"


def test_below_one_agent_is_its_tree_alone() -> None:
    views = [view(1), view(2, 1), view(3, 2), view(4, 1)]

    assert [line.name for line in tree_lines(views, root=2)] == ["agent.2", "agent.3"]


def test_a_line_can_be_cut_to_the_width() -> None:
    (line,) = tree_lines([view(1)])

    assert line.text(12) == "agent.1  co…"


def test_ten_thousand_agents_fit_into_the_lines_that_were_asked_for() -> None:
    views = [view(1), *(view(n, 1 + (n - 2) // 20) for n in range(2, 10_000))]

    assert len(tree_lines(views, max_lines=60)) <= 60


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 5), st.integers(1, 40))
def test_whatever_the_shape_everybody_is_shown_or_counted(
    parents: list[int], max_children: int, max_lines: int
) -> None:
    views = [view(n, min(parent, n - 1)) for n, parent in enumerate(parents, 1)]

    lines = tree_lines(views, max_children=max_children, max_lines=max_lines)

    shown = sum(not line.folded for line in lines)
    counted = 0
    for line in lines:
        words = line.folded.replace(",", "").split()
        counted += sum(int(word) for word in words if word.isdecimal())
    assert shown + counted == len(views)
