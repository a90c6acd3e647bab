"""The evidence against one rank, of each kind, from its track. Judges no other rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefect_ft.decide.hang.facts import EvidenceKind, Limits, Sign
from prefect_ft.decide.hang.track import FLAT_PERCENT, MIN_LOADS, Track, is_flat

WINDOW = 0.5
"""Utilisation and state must last for half a limit; where one kind is enough, for all of it."""

SUSPICION = 0.5
"""Share of a limit from which on a rank is worth looking at more often."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """One rank's evidence. `progresses`: it reports progress itself. `load` is its flat load in cores.

    `is_quiet`: it has given no sign for so long that it may be about to hang too.
    """

    rank: int
    limit_s: float
    signs: tuple[Sign, ...]
    is_hung: bool
    progresses: bool
    is_quiet: bool
    load: float | None

    def has(self, kind: EvidenceKind) -> bool:
        """Whether there is evidence of this kind."""
        return any(sign.kind == kind for sign in self.signs)


def judged(
    rank: int,
    track: Track,
    limits: Limits,
    devices: Iterable[tuple[float, Mapping[str, float]]],
    late_lines: Sequence[Sign],
) -> Judgement:
    """Judge a rank: it hangs if enough kinds of evidence hold and it does not report progress itself."""
    limit_s = track.limit_s(limits)
    progresses = track.speaks and track.silent_s < limit_s
    is_alone = limits.evidence == 1
    window_s = limit_s if is_alone else WINDOW * limit_s
    signs = [*_progress(rank, track, limit_s), *_io(rank, track, limit_s), *_state(rank, track, window_s)]
    load = None
    if (signs or late_lines or is_alone) and not progresses:
        load = track.flat_load(window_s)
        signs += _utilisation(rank, track, window_s, load, devices)
    signs += late_lines
    has_lasted = any(sign.lasted_s >= limit_s or sign.kind == "log" for sign in signs)
    is_hung = not progresses and has_lasted and len({sign.kind for sign in signs}) >= limits.evidence
    is_hung = is_hung and not track.is_starved(window_s)
    return Judgement(rank, limit_s, tuple(signs), is_hung, progresses, is_quiet(track, limit_s), load)


def is_quiet(track: Track, limit_s: float) -> bool:
    """Return whether a rank has given no sign for so long that it is worth looking at more often."""
    quiet_s = track.silent_s if track.speaks else max(track.io_quiet_s, track.still_s)
    return quiet_s >= SUSPICION * limit_s


def _progress(rank: int, track: Track, limit_s: float) -> list[Sign]:
    if not track.speaks or track.silent_s < limit_s:
        return []
    last = track.last
    where = "before its first step" if not track.has_stepped else f"in the stage {last.stage or 'train'}"
    step = "" if last.step is None else f", the last one is {last.step}"
    text = f"no progress for {track.silent_s:.0f} s {where} (limit {limit_s:g} s){step}"
    return [Sign(kind="progress", text=text, lasted_s=track.silent_s, rank=rank)]


def _io(rank: int, track: Track, limit_s: float) -> list[Sign]:
    if not track.knows_io or track.io_quiet_s < limit_s:
        return []
    text = f"no process I/O for {track.io_quiet_s:.0f} s"
    return [Sign(kind="io", text=text, lasted_s=track.io_quiet_s, rank=rank)]


def _state(rank: int, track: Track, window_s: float) -> list[Sign]:
    if track.stillness is None or track.still_s < window_s:
        return []
    text = f"for {track.still_s:.0f} s {track.stillness}"
    return [Sign(kind="state", text=text, lasted_s=track.still_s, rank=rank)]


def _utilisation(
    rank: int,
    track: Track,
    window_s: float,
    load: float | None,
    devices: Iterable[tuple[float, Mapping[str, float]]],
) -> list[Sign]:
    """Return the sign that the load of processors and devices is flat: where devices are known, both."""
    if load is None or track.now_s - track.loads[0].watched_s < window_s:
        return []
    since_s = track.now_s - window_s
    recent = [loads for at_s, loads in devices if at_s >= since_s]
    series = {
        name: [loads[name] for loads in recent if name in loads] for name in (recent[-1] if recent else ())
    }
    if any(len(values) < MIN_LOADS or not is_flat(values, FLAT_PERCENT, 0.0) for values in series.values()):
        return []
    used = "".join(f", device {name} at {values[-1]:g} %" for name, values in sorted(series.items())[:4])
    text = f"load flat at {load:.2f} cores{used} for {window_s:.0f} s"
    return [Sign(kind="utilisation", text=text, lasted_s=window_s, rank=rank)]
