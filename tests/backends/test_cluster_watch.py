"""What is known of a cluster's objects by one list and a stream: whatever becomes of the stream."""

from __future__ import annotations

import gc
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from watch_api import WatchApi, watch_api

from prefect_ft.backends.kubernetes.watch import View, Watch
from prefect_ft.errors import BackendError

pytest.importorskip("kubernetes")

TIMEOUT_S = 10.0


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[WatchApi, str]]:
    with watch_api(tmp_path) as served:
        yield served


@pytest.fixture
def api(served: tuple[WatchApi, str]) -> WatchApi:
    return served[0]


@pytest.fixture
def watch(served: tuple[WatchApi, str]) -> Iterator[Watch]:
    """A watch of what `api` has; its thread ends with the test."""
    from prefect_ft.backends.kubernetes.cluster import Cluster

    before = set(threading.enumerate())
    watch = Watch(Cluster(served[1], None, "default").source_of_pods("team=a"))
    yield watch
    watch.close()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "prefect-ft-watch":
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


def uids(view: View) -> dict[str, str]:
    return {name: told["metadata"]["uid"] for name, told in view.objects.items()}


def await_uids(watch: Watch, expected: dict[str, str]) -> None:
    assert watch.until(lambda view: uids(view) == expected or None, TIMEOUT_S), uids(watch.now())


def followed(api: WatchApi, watch: Watch) -> None:
    """Have a watch follow the stream, with one object known."""
    api.put("a", "1")
    await_uids(watch, {"a": "1"})
    api.await_asked("list", "watch 11")


def test_it_is_listed_once_and_then_told(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.put("b", "2")
    api.put("a", "1", phase="Running")
    await_uids(watch, {"a": "1", "b": "2"})
    assert watch.until(lambda view: view.objects["a"]["status"] == {"phase": "Running"} or None, TIMEOUT_S)
    api.remove("a")
    await_uids(watch, {"b": "2"})
    assert watch.now().gone["1"]["status"] == {"phase": "Running"}
    assert api.asked == ["list", "watch 11"]


def test_a_stream_that_ends_is_taken_up_where_it_ended(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.put("b", "2")
    await_uids(watch, {"a": "1", "b": "2"})
    api.end_streams()
    api.await_asked("watch 12")
    api.put("c", "3")
    await_uids(watch, {"a": "1", "b": "2", "c": "3"})
    assert api.asked.count("list") == 1


def test_what_happens_while_no_stream_is_open_is_told_by_the_next(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.is_away = True
    api.end_streams()
    api.await_asked("watch 11", "watch 11")
    api.put("b", "2")
    api.remove("a")
    api.is_away = False
    await_uids(watch, {"b": "2"})
    assert api.asked.count("list") == 1


def test_a_bookmark_is_where_it_is_taken_up(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.bookmark()
    api.put("b", "2")  # until this is known the bookmark may be on its way
    await_uids(watch, {"a": "1", "b": "2"})
    api.bookmark()
    api.end_streams()
    api.await_asked("watch 14")


@pytest.mark.parametrize("as_event", [pytest.param(True, id="event"), pytest.param(False, id="status")])
def test_what_is_not_told_any_more_is_listed(api: WatchApi, watch: Watch, as_event: bool) -> None:
    """410 Gone: objects may have come and gone since, one under the name of another."""
    followed(api, watch)
    api.gone_as_event = as_event
    api.is_away = True
    api.end_streams()
    api.await_asked("watch 11", "watch 11")
    api.remove("a")
    api.put("a", "2")
    api.put("b", "3")
    api.forget()
    api.is_away = False
    await_uids(watch, {"a": "2", "b": "3"})
    assert set(watch.now().gone) == {"1"}
    assert api.asked.count("list") == 2


def test_what_has_gone_untold_is_missing_in_the_next_list(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.remove("a", untold=True)
    api.forget()
    api.end_streams()
    await_uids(watch, {})
    assert set(watch.now().gone) == {"1"}


def test_a_cluster_that_is_away_is_told_until_it_is_back(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.is_away = True
    api.end_streams()
    assert watch.until(lambda view: view.away, TIMEOUT_S)
    with pytest.raises(BackendError, match="the store is away"):
        watch.now()
    api.is_away = False
    assert watch.until(lambda view: view.away is None or None, TIMEOUT_S)
    assert uids(watch.now()) == {"a": "1"}


def test_a_first_list_that_fails_is_told_at_once(api: WatchApi, watch: Watch) -> None:
    api.is_away = True
    with pytest.raises(BackendError, match="refused: the store is away"):
        watch.now()


def test_who_hangs_up_is_asked_at_once_only_once_more(
    api: WatchApi, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection may have been over for long; but many who lose their cluster at once must not storm it."""
    for pause in ("MIN_PAUSE_S", "MAX_PAUSE_S"):
        monkeypatch.setattr(f"prefect_ft.backends.kubernetes.watch.{pause}", 60)
    followed(api, watch)
    api.is_away = api.hangs_up = True
    api.end_streams()
    assert watch.until(lambda view: view.away, TIMEOUT_S)
    assert api.asked == ["list", "watch 11", "watch 11", "watch 11"]


def test_a_stream_may_be_silent_for_longer_than_an_answer_may_take(
    api: WatchApi, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect_ft.backends.kubernetes import api as api_client
    from prefect_ft.backends.kubernetes import listing

    waits: list[float | None] = []

    class Heard(listing.Changes):
        def __init__(self, answer: Any) -> None:
            super().__init__(answer)
            waits.append(answer.connection.sock.gettimeout())

    monkeypatch.setattr(listing, "Changes", Heard)
    followed(api, watch)
    api.put("b", "2")
    await_uids(watch, {"a": "1", "b": "2"})
    assert waits == [listing.WATCH_S + api_client.TIMEOUT_S[1]]


def test_who_takes_a_watch_and_does_not_answer_is_away(
    api: WatchApi, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("prefect_ft.backends.kubernetes.api.TIMEOUT_S", (5.0, 0.05))
    api.is_silent = True
    assert "does not answer" in str(watch.until(lambda view: view.away, TIMEOUT_S))
    api.is_silent = False
    api.end_streams()
    api.put("a", "1")
    await_uids(watch, {"a": "1"})


@pytest.mark.parametrize(
    ("page", "why"),
    [
        pytest.param(b"<html>Log in to go on</html>", "is not JSON: b'<html>Log in", id="a-page"),
        pytest.param(b'"ok"', "does not match Kubernetes' API: the whole", id="a-text"),
        pytest.param(
            b'{"metadata": {}, "items": [{"metadata": {"name": 3}}]}', "items.0.metadata.name", id="half"
        ),
        pytest.param(b"[" * 10**5, "is not JSON", id="deep"),
    ],
)
def test_a_proxy_that_answers_in_its_place_is_told_and_waited_out(
    api: WatchApi, watch: Watch, page: bytes, why: str
) -> None:
    api.page = page
    gc.disable()  # finalizers that run within too deep a recursion fail, and pytest with them
    try:
        with pytest.raises(BackendError, match=re.escape(why)):
            watch.now()
    finally:
        gc.enable()
    api.page = None
    api.put("a", "1")
    await_uids(watch, {"a": "1"})


def test_what_is_empty_may_be_null(api: WatchApi, watch: Watch) -> None:
    api.page = b'{"metadata": {"resourceVersion": "10"}, "items": null}'
    assert watch.now().objects == {}


def test_where_nobody_listens_it_is_asked_only_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from prefect_ft.backends.kubernetes.cluster import Cluster

    with watch_api(tmp_path) as (_, kubeconfig):
        cluster = Cluster(kubeconfig, None, "default")
    with pytest.raises(BackendError, match="does not answer"):
        cluster.pods("team=a")
    assert caplog.messages == []


def told(name: str, uid: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "uid": uid}, "status": status}


def test_what_was_made_just_now_is_there_before_it_is_told(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    watch.note(told("b", "2"))
    assert uids(watch.now()) == {"a": "1", "b": "2"}
    api.put("b", "2", phase="Running")
    assert watch.until(lambda view: view.objects["b"]["status"] == {"phase": "Running"} or None, TIMEOUT_S)


def test_what_is_told_already_is_not_made_older_by_a_note(api: WatchApi, watch: Watch) -> None:
    api.put("a", "1", phase="Running")
    await_uids(watch, {"a": "1"})
    watch.note(told("a", "1", phase="Pending"))
    assert watch.now().objects["a"]["status"] == {"phase": "Running"}


def test_the_end_of_one_that_had_the_name_before_is_not_this_ones(api: WatchApi, watch: Watch) -> None:
    """The answer to a request may come before what the stream tells of earlier ones."""
    followed(api, watch)
    watch.note(told("a", "2"))
    assert (uids(watch.now()), set(watch.now().gone)) == ({"a": "2"}, {"1"})
    api.put("a", "1", phase="Failed")
    api.remove("a")
    api.put("a", "2")
    api.put("b", "3")
    await_uids(watch, {"a": "2", "b": "3"})


def test_what_is_gone_is_not_brought_back_by_a_note(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    api.remove("a")
    await_uids(watch, {})
    watch.note(told("a", "1"))
    assert uids(watch.now()) == {}


def test_nothing_is_found_in_no_time(api: WatchApi, watch: Watch) -> None:
    followed(api, watch)
    assert watch.until(lambda view: None, 0) is None


def test_two_watches_may_be_waited_for_at_once(api: WatchApi, served: tuple[WatchApi, str]) -> None:
    from prefect_ft.backends.kubernetes.cluster import Cluster

    news = threading.Condition()
    cluster = Cluster(served[1], None, "default")
    first, second = (Watch(cluster.source_of_pods("team=a"), news) for _ in range(2))
    try:
        for each in (first, second):
            assert uids(each.now()) == {}
        api.put("a", "1")
        both = first.until(lambda _: ("a" in second.now().objects and "a" in first.now().objects) or None, 10)
        assert both
    finally:
        first.close()
        second.close()
