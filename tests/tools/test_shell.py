from __future__ import annotations

import os
import re
import shlex
import signal
import stat
import time
from functools import partial
from pathlib import Path

import pytest
import trio

from nanotrio.errors import ToolError
from nanotrio.tools import bash
from tests.tools.contexts import call, eventually, make_context, marked, processes_of, reap


async def test_output_and_errors_come_in_order_with_the_exit_code(tmp_path: Path) -> None:
    output = await call(bash, make_context(tmp_path), command="echo a; echo b >&2; echo c; exit 3")

    assert output.content == "a\nb\nc\n[exit code 3]"
    assert output.is_error


@pytest.mark.parametrize(
    ("command", "content", "is_error"),
    [
        ("true", "(no output)", False),
        (
            "echo )",
            "bash: eval: line 1: syntax error near unexpected token `)'\nbash: eval: line 1: `echo )'\n[exit code 2]",
            True,
        ),
        ("", "(no output)", False),
        ("printf x # comment", "x", False),
        ("cat <<END\na b\nEND", "a b\n", False),
        ("kill -9 $$", "[killed by SIGKILL]", True),
        ("sh -c 'exit 143'", "[exit code 143 (SIGTERM)]", True),
        ("set -e; false; echo no", "[exit code 1]", True),
        ("trap 'echo bye' EXIT; exit 4", "bye\n[exit code 4]", True),
        ("yes | head -n 1", "y\n", False),
        ("printf '\\e[31mred\\e[0m\\e]0;title\\a.\\e'", "red.", False),
        ("printf 'W\\0s\\0l\\0'", "W\0s\0l\0", False),
        ("printf 'Z\\xfcrich'", "Z\ufffdrich", False),
        ("echo $'\\u2028'", "\u2028\n", False),
    ],
)
async def test_what_a_command_says_is_what_the_model_reads(
    command: str, content: str, is_error: bool, tmp_path: Path
) -> None:
    output = await call(bash, make_context(tmp_path), command=command)

    assert output.content == content
    assert output.is_error == is_error


async def test_the_directory_carries_over_within_the_agents_own_and_variables_do_not(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    odd = "it's \u00e9 \U0001f46a\n"
    (tmp_path / odd).mkdir()

    await call(bash, context, command=f"A=1; cd {shlex.quote(odd)}")
    assert (await call(bash, context, command='printf %s "$PWD:$A"')).content == f"{tmp_path}/{odd}:"

    left = await call(bash, context, command="cd /; exit 1")
    assert left.content.startswith("[exit code 1]\n[/ is outside the working directory")
    assert (await call(bash, context, command="pwd")).content == f"{tmp_path}\n"
    assert (await call(bash, make_context(tmp_path), command="pwd")).content == f"{tmp_path}\n"


async def test_a_directory_that_is_gone_is_said(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    context = make_context(inner)

    await call(bash, context, command="mkdir sub; cd sub")
    (inner / "sub").rmdir()
    assert "sub is gone; this ran in" in (await call(bash, context, command="true")).content
    inner.rmdir()
    with pytest.raises(ToolError, match="inner does not exist"):
        await call(bash, context, command="true")


async def test_the_environment_is_the_contexts_and_keeps_programs_from_asking(tmp_path: Path) -> None:
    os.environ["LEAKED"] = "from the process"
    try:
        context = make_context(tmp_path, environment={"MINE": "yes", "EDITOR": "vi", "SSH_ASKPASS": "/bin/ask"})
        content = (await call(bash, context, command="env")).content
    finally:
        del os.environ["LEAKED"]

    lines = set(content.splitlines())
    assert {"MINE=yes", "PAGER=cat", "EDITOR=true", "GIT_EDITOR=true", "GIT_TERMINAL_PROMPT=0", "TERM=dumb"} <= lines
    assert "LEAKED" not in content
    assert "ASKPASS=" not in content


@pytest.mark.parametrize(
    ("command", "pattern"),
    [
        ("read x; echo $?", "^1\n"),
        ("python3 -c 'input()'", "EOFError"),
        ("cat", r"^\(no output\)$"),
        ("tty", "not a tty"),
        ("sh -c 'echo hi >/dev/tty'", "No such device|not configured|cannot"),
        ("git init -q . && git commit --allow-empty", "Abort|Author identity|empty ident"),
        ("printf 'a\\nb\\n' > t; ${PAGER:-less} t", "^a\nb\n"),
        ("ssh -o ConnectTimeout=2 localhost", "."),
        ("sudo -k true", "."),
    ],
)
async def test_a_command_that_waits_for_a_person_ends_fast_by_itself(
    command: str, pattern: str, tmp_path: Path
) -> None:
    with trio.fail_after(10):
        output = await call(bash, make_context(tmp_path), command=command, timeout=8_000)

    assert "its timeout" not in output.content
    assert re.search(pattern, output.content), output.content


@pytest.mark.parametrize(
    ("command", "words", "is_named"),
    [
        ("sleep 60 & echo done", "done\n", True),
        ("sleep 60 </dev/null >/dev/null & echo x", "x\n", True),
        ("sleep 60 </dev/null >/dev/null 2>&1 & echo x", "x\n", False),
        ("setsid sleep 60 & echo x", "x\n", True),
        ("(while :; do echo t; sleep .1; done) & echo x", "x\nt\n", True),
        ("python3 -m http.server 0 & echo x", "x\n", True),
    ],
)
async def test_a_holder_of_the_pipe_does_not_hold_the_call(
    command: str, words: str, is_named: bool, tmp_path: Path
) -> None:
    context = make_context(tmp_path)
    started = time.monotonic()

    output = await call(bash, context, command=f"{command}; date +%s.%N >&2")

    assert time.monotonic() - started < 2.5  # a second, and a busy machine
    assert output.content.startswith(words[:2])
    named = [int(pid) for pid in re.findall(r"(\d+) \(", output.content)]
    assert bool(named) == is_named
    assert not named or set(named) & set(marked(context))
    assert await reap(context) == [()]
    assert marked(context) == []


async def test_a_holder_goes_on_printing_to_a_file_and_does_not_die_of_a_closed_pipe(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    command = "(while [ ! -e go ]; do sleep 0.05; done; echo late; touch said) & echo early"
    output = await call(bash, context, command=command)
    (log,) = (tmp_path / ".outputs").iterdir()
    assert str(log) in output.content

    (tmp_path / "go").touch()
    await eventually(lambda: log.read_text() == "late\n" and (tmp_path / "said").exists())
    await reap(context)


async def test_a_timeout_ends_the_group_and_reports_what_was_read(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    command = (
        "trap 'echo cleaned; exit' TERM; echo before; (trap '' TERM; sleep 600 | cat)& while :; do sleep 0.1; done"
    )

    output = await call(bash, context, command=command, timeout=300)

    assert output.is_error
    assert re.match(r"before\n.*cleaned\n\[", output.content, re.DOTALL)
    assert "ended after 0.3 s, its timeout" in output.content
    await reap(context)
    assert marked(context) == []


async def test_the_agents_own_bound_holds_over_the_timeout_asked_for(tmp_path: Path) -> None:
    output = await call(bash, make_context(tmp_path, tool_seconds=0.4), command="sleep 60", timeout=10**9)

    assert output.content == "[ended after 0.2 s, its timeout; a longer one, or run_in_background, would let it go on]"


async def test_endless_output_is_bounded_in_memory_result_and_file(tmp_path: Path) -> None:
    context = make_context(tmp_path, max_result_bytes=4_000, max_output_file_bytes=100_000)

    output = await call(bash, context, command="echo first; yes", timeout=300)

    (file,) = (tmp_path / ".outputs").iterdir()
    assert output.content.startswith("first\ny\n")
    assert "the first 100,000 are in" in output.content
    assert str(file) in output.content
    assert "its timeout" in output.content
    assert len(output.content.encode()) <= 4_000
    assert file.stat().st_size == 100_000
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


async def test_a_result_is_given_where_its_file_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / ".outputs").write_text("in the way")
    context = make_context(tmp_path, max_result_bytes=3_000)

    long = await call(bash, context, command="yes | head -c 9000; exit 2")
    held = await call(bash, context, command="sleep 60 & echo x")

    assert re.fullmatch(
        r"[y\n]+\n\[\.\.\. 9,000 bytes; .* could not be kept .*\]\n[y\n]+\n\[exit code 2\]", long.content
    )
    assert re.fullmatch(r"x\n\[still running, .*sleep.*what follows is lost: .*\]", held.content)
    await reap(context)


async def test_a_very_small_bound_holds_too(tmp_path: Path) -> None:
    for bound in (1, 10, 100, 1_000):
        content = (
            await call(bash, make_context(tmp_path, max_result_bytes=bound), command="yes | head -c 9000; exit 2")
        ).content
        assert len(content.encode()) <= bound


async def test_twenty_floods_at_once_leave_the_loop_free(tmp_path: Path) -> None:
    worst_seconds = 0.0
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as floods:
            for agent in range(20):
                context = make_context(tmp_path, agent, max_result_bytes=2_000, max_output_file_bytes=10_000)
                floods.start_soon(partial(call, bash, context, command="yes", timeout=700))

            async def watch() -> None:
                nonlocal worst_seconds
                while True:
                    before = time.monotonic()
                    await trio.sleep(0.01)
                    worst_seconds = max(worst_seconds, time.monotonic() - before)

            nursery.start_soon(watch)
        nursery.cancel_scope.cancel()
    assert worst_seconds < 1.0  # the two cores are taken by the floods; alone it is some milliseconds


@pytest.mark.parametrize("command", ["head -c 3000000 /dev/zero", "printf '\\x89PNG\\r\\n\\x1a\\n\\0\\1\\2\\3'"])
async def test_a_binary_is_named_and_not_shown(command: str, tmp_path: Path) -> None:
    output = await call(bash, make_context(tmp_path), command=command)

    (file,) = (tmp_path / ".outputs").iterdir()
    kind = "binary data" if "zero" in command else "a PNG image"
    assert output.content.startswith(f"[{kind}, not shown: {file.stat().st_size:,} bytes; all are in {file}")
    assert len(output.content) < 300


async def test_a_line_of_megabytes_and_a_flood_of_escapes_are_cut(tmp_path: Path) -> None:
    context = make_context(tmp_path, max_result_bytes=3_000)
    long = await call(bash, context, command="head -c 5000000 /dev/zero | tr '\\0' 'x'; echo; echo end")
    flood = await call(bash, context, command="for i in $(seq 2000); do printf '\\e[2J\\e[%d;1Hx' $i >&2; done")

    assert len(long.content.encode()) <= 3_000
    assert long.content.endswith("x\nend\n")
    assert "\x1b" not in flood.content
    assert re.fullmatch(r"x+\n\[\.\.\. [\d,]+ bytes; all are in .* \.\.\.\]\n[\[\d;HJ]*x+", flood.content)


async def test_output_is_cut_between_characters(tmp_path: Path) -> None:
    for shift in range(5):
        context = make_context(tmp_path, max_result_bytes=2_000 + shift)
        content = (await call(bash, context, command="yes \U0001f468\u200d\U0001f469 | head -n 2000")).content
        assert "\ufffd" not in content
        assert not re.search("\u200d\n\\[", content)


async def test_a_background_command_returns_at_once_with_its_process_and_file(tmp_path: Path) -> None:
    context = make_context(tmp_path, max_output_file_bytes=100_000)

    output = await call(bash, context, command="echo up; yes", run_in_background=True)

    match = re.fullmatch(r"\[runs in the background as process (\d+); it prints to (.*)\]", output.content)
    assert match
    log = Path(match[2])
    await eventually(lambda: not marked(context))  # the log is bounded, and what writes to it ends there
    assert content_of(log)[:5] == "up\ny\n"
    assert len(content_of(log)) <= 100_000 + 1_024
    await call(bash, context, command="true")
    assert not is_process(int(match[1]))


async def test_cancelling_two_hundred_calls_is_prompt_and_leaves_nothing(tmp_path: Path) -> None:
    contexts = [make_context(tmp_path, agent) for agent in range(200)]
    async with trio.open_nursery() as nursery:
        for index, context in enumerate(contexts):
            command = f"touch up{index}; sleep 600 | cat"
            nursery.start_soon(partial(call, bash, context, command=command))
        await eventually(lambda: len(list(tmp_path.glob("up*"))) == 200)
        shells = [pid for context in contexts for pid in processes_of(context).groups]
        started = time.monotonic()
        nursery.cancel_scope.cancel()
    results = await reap(*contexts, max_seconds=3)
    assert time.monotonic() - started < 3
    assert results == [()] * 200
    assert not any(map(marked, contexts[::50]))
    assert len(shells) == 200
    assert not any(map(is_process, shells))  # collected, not left as zombies


async def test_two_hundred_calls_at_once_start_without_stalling_the_loop(tmp_path: Path) -> None:
    passes = 0
    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as calls:
            for agent in range(200):
                calls.start_soon(partial(call, bash, make_context(tmp_path, agent), command="true"))

            async def watch() -> None:
                nonlocal passes
                while True:
                    passes += 1
                    await trio.lowlevel.checkpoint()

            nursery.start_soon(watch)
        nursery.cancel_scope.cancel()
    assert passes >= 200  # one start a pass


async def test_what_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="NUL"):
        await call(bash, make_context(tmp_path), command="a\0b")
    with pytest.raises(ToolError, match="could not be started: Argument list too long"):
        await call(bash, make_context(tmp_path), command=f": {'x' * 200_000}")


async def test_signals_that_python_ignores_work_in_commands(tmp_path: Path) -> None:
    assert signal.getsignal(signal.SIGPIPE) == signal.SIG_IGN
    output = await call(bash, make_context(tmp_path), command="yes | true; echo ${PIPESTATUS[0]}")

    assert output.content == "141\n"


def content_of(path: Path) -> str:
    return path.read_text()


def is_process(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def descriptors() -> int:
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - a Path would open one more


async def test_no_descriptor_is_left_open_or_handed_on(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    await call(bash, context, command="true")
    before = descriptors()
    output = await call(bash, context, command="ls /proc/self/fd | tr '\\n' ' '")
    await call(bash, context, command="sleep 5 & yes | head -c 100000")
    with trio.move_on_after(0.05):
        await call(bash, context, command="sleep 5")
    await reap(context)

    assert descriptors() == before
    handed = set(map(int, output.content.split())) - {0, 1, 2, 3}
    assert len(handed) == 1  # the one that the shell says its directory on
    assert min(handed) >= 64


async def test_other_codes_children_are_left_to_them(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    theirs = await trio.lowlevel.open_process(["sh", "-c", "exit 7"])
    await call(bash, context, command="setsid sleep 60 & true")
    await reap(context)

    assert await theirs.wait() == 7
