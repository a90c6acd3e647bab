"""Ctrl-C: once is a wish that is waited for like any event, twice is the end."""

from __future__ import annotations

import select
import signal
import threading
from collections.abc import Callable, Iterator

import pytest

from prefect_ft.supervisor.stopping import ONE_REQUEST_S, HandOver, StopRequest

BOTH = (signal.SIGINT, signal.SIGTERM)


def is_readable(stop: StopRequest) -> bool:
    return bool(select.select([stop], [], [], 0)[0])


def test_nobody_has_asked() -> None:
    with StopRequest() as stop:
        assert (stop.wanted, is_readable(stop)) == (None, False)


@pytest.mark.parametrize("number", BOTH)
def test_a_signal_is_a_wish(number: signal.Signals) -> None:
    with StopRequest() as stop:
        signal.raise_signal(number)
        assert (stop.wanted, is_readable(stop)) == (number.name, True)


def clock(*moments_s: float) -> Callable[[], float]:
    return iter(moments_s).__next__


@pytest.mark.parametrize("second", BOTH)
def test_a_second_signal_does_not_wait(second: signal.Signals) -> None:
    with StopRequest(now=clock(0, ONE_REQUEST_S)) as stop:
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(second)
        assert stop.wanted == "SIGTERM"


@pytest.mark.parametrize("number", BOTH)
def test_one_signal_that_arrives_twice_is_one_wish(number: signal.Signals) -> None:
    """`timeout` signals its child and then the group, where the child is: both within microseconds."""
    with StopRequest(now=clock(0, ONE_REQUEST_S / 2)) as stop:
        for _ in range(2):
            signal.raise_signal(number)
        assert stop.wanted == number.name


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_after_another_wish_interrupts_nothing(number: signal.Signals) -> None:
    """Prefect's API and its worker both tell of one cancellation; `cancel` may be followed by Ctrl-C."""
    with StopRequest(now=clock(0, ONE_REQUEST_S)) as stop:
        stop.ask("cancelled in Prefect")
        signal.raise_signal(number)
        assert stop.wanted == "cancelled in Prefect"
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)


@pytest.mark.parametrize("number", BOTH)
def test_what_is_being_taken_down_is_not_interrupted(number: signal.Signals) -> None:
    with StopRequest(now=clock(0, 1, 2)) as stop:
        stop.settle()
        for _ in range(3):
            signal.raise_signal(number)


def test_the_handlers_of_before_come_back() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    with StopRequest():
        assert [signal.getsignal(number) for number in BOTH] != before
    assert [signal.getsignal(number) for number in BOTH] == before


def test_who_asks_first_is_who_asked() -> None:
    with StopRequest() as stop:
        for source in ("the API", "somebody else"):
            for _ in range(70_000):  # more than a pipe holds
                stop.ask(source)
        assert stop.wanted == "the API"


def test_whoever_waits_wakes_up() -> None:
    with StopRequest() as stop:
        thread = threading.Thread(target=lambda: stop.ask("a thread"))
        thread.start()
        assert select.select([stop], [], [], 60)[0] == [stop]
        thread.join()


def test_a_wish_that_comes_too_late_does_no_harm() -> None:
    with StopRequest() as stop:
        pass
    stop.ask("somebody")
    assert stop.wanted == "somebody"


def test_off_the_main_thread_signals_stay_as_they_are() -> None:
    before = [signal.getsignal(number) for number in BOTH]
    seen = []

    def enter() -> None:
        with StopRequest() as stop:
            seen.append([signal.getsignal(number) for number in BOTH])
            stop.ask("somebody")
            seen.append([stop.wanted])

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert seen == [before, ["somebody"]]
    assert [signal.getsignal(number) for number in BOTH] == before


@pytest.mark.parametrize(
    ("number", "wanted"), [(signal.SIGTERM, None), (signal.SIGINT, "SIGINT")], ids=["SIGTERM", "SIGINT"]
)
def test_who_is_moved_about_by_others_leaves_at_a_sigterm_and_wants_no_stop(
    number: signal.Signals, wanted: str | None
) -> None:
    with StopRequest(leaves_on_sigterm=True) as stop:
        signal.raise_signal(number)
        assert (stop.wanted, stop.lost is None, is_readable(stop)) == (wanted, wanted is not None, True)
        assert stop.lost is None or str(stop.lost).startswith("SIGTERM")


class LimitError(BaseException):
    """What a caller's time limit raises."""


@pytest.fixture
def time_limit() -> Iterator[None]:
    """A time limit on this process, as a caller sets one."""

    def over(*_: object) -> None:
        raise LimitError

    before = signal.signal(signal.SIGALRM, over)
    yield
    signal.signal(signal.SIGALRM, before)


def test_a_callers_time_limit_waits_until_it_has_been_stopped(time_limit: None) -> None:
    happened = []

    def stopped() -> None:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGALRM)
            happened.extend([stop.wanted, is_readable(stop)])

    with pytest.raises(LimitError):
        stopped()
    assert happened == ["SIGALRM", True]
    with pytest.raises(LimitError):
        signal.raise_signal(signal.SIGALRM)


def test_another_error_goes_before_a_callers_time_limit(time_limit: None) -> None:
    def stopped() -> None:
        with StopRequest():
            signal.raise_signal(signal.SIGALRM)
            raise LookupError

    with pytest.raises(LookupError):
        stopped()


def test_an_alarm_that_raises_nothing_is_no_wish() -> None:
    heard: list[tuple[int, bool]] = []
    before = signal.signal(signal.SIGALRM, lambda number, frame: heard.append((number, frame is not None)))
    try:
        with StopRequest() as stop:
            signal.raise_signal(signal.SIGALRM)
            assert (heard, stop.wanted) == ([(signal.SIGALRM, True)], None)
    finally:
        signal.signal(signal.SIGALRM, before)


def test_whoever_comes_later_waits_until_it_has_been_recorded() -> None:
    """Else the wish is written down after it was carried out and forgotten."""
    order: list[str] = []
    is_writing, may_end = threading.Event(), threading.Event()

    def remember(*_: object) -> None:
        is_writing.set()
        may_end.wait()
        order.append("written")

    stop = StopRequest(remember)
    stop.ask("somebody")
    first = threading.Thread(target=stop.record)
    first.start()
    is_writing.wait()
    second = threading.Thread(target=lambda: (stop.record(), order.append("forgotten")))
    second.start()
    may_end.set()
    first.join()
    second.join()
    stop.close()
    assert order == ["written", "forgotten"]


def test_a_wish_that_comes_while_the_end_is_taken_down_is_not_recorded() -> None:
    """It would outlive the run, and end the next one that is resumed."""
    recorded = []
    with StopRequest(lambda *wish: recorded.append(wish)) as stop:
        stop.settle()
        signal.raise_signal(signal.SIGTERM)
        stop.record()
    assert (stop.wanted, recorded) == ("SIGTERM", [])


def test_a_wish_is_recorded_once() -> None:
    recorded: list[tuple[str, bool]] = []
    with StopRequest(lambda *wish: recorded.append(wish)) as stop:
        stop.record()
        stop.ask("SIGINT", checkpoint=True)
        stop.record()
        stop.record()
    assert recorded == [("SIGINT", True)]


def test_a_wish_that_does_not_fit_on_the_disk_is_recorded_later() -> None:
    recorded: list[str] = []

    def remember(source: str, _: bool) -> None:
        recorded.append(source)
        if len(recorded) == 1:
            raise OSError("no space left")

    with StopRequest(remember) as stop:
        stop.ask("SIGINT")
        for _ in range(3):
            stop.record()
    assert recorded == ["SIGINT", "SIGINT"]


def test_a_run_that_has_its_next_tenure_is_handed_over_no_more() -> None:
    with StopRequest() as stop:
        for _ in range(70_000):  # more than a pipe holds
            stop.hand_over("time is up", HandOver.BEGUN)
        stop.take_over()
        assert (stop.hands_over, stop.tenure_is_taken, is_readable(stop)) == (None, False, False)
        stop.ask("SIGINT")
        stop.take_over()
        assert is_readable(stop)


def test_a_sigterm_that_announces_the_end_of_a_tenure_hands_the_run_over() -> None:
    with StopRequest(leaves_on_sigterm=True) as stop:
        stop.hands_over_on_sigterm = True
        signal.raise_signal(signal.SIGTERM)
        assert (stop.wanted, stop.lost, stop.hands_over) == (None, None, "SIGTERM: the allocation ends")
        signal.raise_signal(signal.SIGINT)
        assert (stop.wanted, stop.hands_over) == ("SIGINT", None)


@pytest.mark.parametrize(
    ("told", "why", "is_taken", "is_over"),
    [
        pytest.param([("up", HandOver.DUE)], "up", False, False, id="time-is-up"),
        pytest.param(
            [("up", HandOver.DUE), ("told to go", HandOver.BEGUN)], "told to go", True, False, id="taken"
        ),
        pytest.param(
            [("up", HandOver.DUE), ("gone", HandOver.OVER)], "gone", True, True, id="gone-after-the-notice"
        ),
        pytest.param([("gone", HandOver.OVER), ("up", HandOver.DUE)], "gone", True, True, id="a-late-notice"),
        pytest.param([("go", HandOver.BEGUN), ("again", HandOver.BEGUN)], "go", True, False, id="told-twice"),
    ],
)
def test_what_is_known_of_the_end_of_a_tenure_only_gets_more(
    told: list[tuple[str, HandOver]], why: str, is_taken: bool, is_over: bool
) -> None:
    with StopRequest() as stop:
        for each in told:
            stop.hand_over(*each)
        assert (stop.hands_over, stop.tenure_is_taken, stop.tenure_is_over) == (why, is_taken, is_over)
        stop.ask("SIGINT")
        assert stop.hands_over is None
