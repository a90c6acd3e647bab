"""The signal that asks for a checkpoint: for those of a rank's processes that handle it, and for nobody else."""

from __future__ import annotations

import shlex
import signal
import sys

import pytest
from agents import AgentClient, script

ASKED = "import signal; signal.signal(signal.SIGUSR1, lambda *_: print('asked\\n', end=''))\n"
WAIT = "print('up\\n', end='')\nwhile True: signal.pause()"
HANDLES = ASKED + WAIT
DIES = "import signal\n" + WAIT


def ask(client: AgentClient) -> None:
    client.say("checkpoint", token=client.token(1), signal=signal.SIGUSR1)


def shell(words: str, code: str = HANDLES) -> list[str]:
    """A shell's command; `TRAIN` in it starts Python."""
    return ["sh", "-c", words.replace("TRAIN", f"{shlex.quote(sys.executable)} -u -c {shlex.quote(code)}")]


def started_in(client: AgentClient, command: list[str], *, trainers: int = 1, ranks: int = 1) -> None:
    client.start(command, ranks=ranks)
    while sum(client.printed(rank).count(b"up\n") for rank in range(ranks)) < trainers:
        client.hear()


BELOW = {
    "itself": ("exec TRAIN", 1),
    "child": ("TRAIN; true", 1),
    "below-one-that-ignores-it": ("trap '' USR1; TRAIN; true", 1),
    "in-sessions-of-their-own": ("setsid TRAIN & setsid TRAIN & wait", 2),
    "orphan": ("(TRAIN &); sleep 1000; true", 1),
}


@pytest.mark.parametrize(("words", "trainers"), BELOW.values(), ids=BELOW)
def test_it_reaches_the_trainer_wherever_it_is(client: AgentClient, words: str, trainers: int) -> None:
    started_in(client, shell(words), trainers=trainers)
    ask(client)
    while client.printed().count(b"asked\n") < trainers:
        client.hear()
    client.stop()
    assert client.expect("exited")["signal"] == signal.SIGKILL
    assert not [event for event in client.heard if event["ev"] == "unhandled"]


def test_it_reaches_a_thread_that_waits_for_it(client: AgentClient) -> None:
    code = f"""
import signal, threading
def wait():
    signal.sigwait([signal.SIGUSR1])
    print("asked\\n", end="")
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
threading.Thread(target=wait, daemon=True).start()
{WAIT}
"""
    started_in(client, script(code))
    ask(client)
    client.expect_printed("asked\n")
    client.stop()


BLOCKS_ALL = "signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())\n"

DEAF = {
    "dies": DIES,
    "ignores": "import signal; signal.signal(10, signal.SIG_IGN)\n" + WAIT,
    "blocks-all-while-it-forks": f"import signal\n{BLOCKS_ALL}{WAIT}",
    "awaits-another-and-has-a-helper": f"""
import signal, threading
def help_out():
    {BLOCKS_ALL}
    print("up\\n", end="")
    threading.Event().wait()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
threading.Thread(target=help_out, daemon=True).start()
signal.sigwait([signal.SIGTERM])
""",
}


@pytest.mark.parametrize("code", DEAF.values(), ids=DEAF)
def test_who_does_not_handle_it_lives_and_that_is_told(client: AgentClient, code: str) -> None:
    started_in(client, shell("TRAIN; true", code))
    ask(client)
    told = client.expect("unhandled")
    assert (told["signal"], told["ranks"]) == (signal.SIGUSR1, [0])
    client.stop()
    assert client.expect("exited")["signal"] == signal.SIGKILL


def test_ranks_that_do_not_handle_it_are_named(client: AgentClient) -> None:
    code = f"import os, signal\nif os.environ['RANK'] == '1': {ASKED}{WAIT}"
    started_in(client, script(code), trainers=3, ranks=3)
    ask(client)
    assert client.expect("unhandled")["ranks"] == [0, 2]
    client.expect_printed("asked\n", 1)
    client.stop()


def test_what_the_trainer_forked_is_left_alone(client: AgentClient) -> None:
    code = f"""
import os
{ASKED}
signal.signal(signal.SIGUSR2, lambda *_: print("child\\n", end=""))
if child := os.fork():
    def relay(*_):
        print("asked\\n", end="")
        os.kill(child, signal.SIGUSR2)
    signal.signal(signal.SIGUSR1, relay)
{WAIT}
"""
    started_in(client, script(code), trainers=2)
    ask(client)
    client.expect_printed("child\n")  # a signal of a lower number would have been handled before
    client.stop()
    assert client.printed().count(b"asked\n") == 1
