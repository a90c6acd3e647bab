"""The heartbeat: a rank reports its state, and its agent reads that without asking.

Owns both sides of the file of a rank's beats. It runs inside the user's training, so it must never raise, wait
or take noticeable time there; it imports the standard library only
(not `typing`, which takes longer to import than all the rest) and nothing else of this package. Where a framework
has the loop, `prefect_ft.callbacks` calls it.

The file, 64 bytes: magic with the version (7) · the notice byte (1) · record (48) · its CRC-32 (4) ·
how often a checkpoint was asked for (4), which the agent writes. A beat is a store into shared
memory. It is not atomic, so the record has a checksum: a reader that finds it half stored detects that
and reads again, on any memory model. inotify does not see such stores, so the notice byte is written with a
system call, about once a second.

Once a rank reports values, the file grows by a ring of the last of them, each with its own checksum (40 bytes: number,
step, loss, gradient norm, which of the two were reported, CRC-32), and by one place for the sample (144 bytes). Readers
of earlier versions read only the first 64 bytes.

Schedulers send SIGTERM to every process of a job some time before they end it. Where `NOTICE_VARIABLE` says so, a rank
that beats survives that signal, unless it handles it itself: its agent gets it too, asks for a checkpoint, and ends it.

A rank that beats also writes the stacks of its threads to a file beside this one, when its agent asks by STACKS_SIGNAL:
faulthandler does that whatever the threads are doing, even in C and without the interpreter's lock.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import struct
from binascii import crc32
from collections import namedtuple
from operator import index
from time import CLOCK_BOOTTIME, clock_gettime_ns

__all__ = [
    "STAGES",
    "Beat",
    "Told",
    "ask_checkpoint",
    "beat",
    "read",
    "read_told",
    "should_checkpoint",
    "skip_eval",
    "skips",
]

STAGES = ("load", "compile", "train", "validate", "checkpoint", "finish")
"""The stages of a training; their order is their code in the file: append only."""

STACKS = ".stacks"
"""Suffix of the file of the stacks, after the heartbeat's own name."""

STACKS_SIGNAL = 57
"""The signal that asks for them; one of the real-time signals, which programs rarely use."""

ENDS = ".ends"
"""Suffix of the file, after the heartbeat's own name, by which an agent says that it ends the rank."""

NOTICE_VARIABLE = "PREFECT_FT_SIGTERM_IS_NOTICE"
"""Set where a scheduler sends SIGTERM to every process of a job, some time before it ends them."""

_VARIABLE = "PREFECT_FT_HEARTBEAT"
_SKIPPED = "PREFECT_FT_SKIP_STEPS"
_SKIPPED_EVAL = "PREFECT_FT_SKIP_EVAL_AT_STEP"
_MAGIC = b"PFTHB-1"
_SIZE = 64
_NOTICE_AT = len(_MAGIC)
_RECORD_AT = 8
_RECORD = struct.Struct("QqQ24s")  # beats, t_ns, step, stage part
_STAGE_PART = struct.Struct("qQII")  # stage_t_ns, stage_step, code, steps apart
_ASKED = struct.Struct("I")
_SEALED = struct.Struct("48sI")  # record, checksum
_SEALED_PLACE = slice(_RECORD_AT, _RECORD_AT + _SEALED.size)
_ASKED_AT = _RECORD_AT + _SEALED.size
_ASKED_PLACE = slice(_ASKED_AT, _SIZE)
_pack_record, _seal, _pack_checksum = _RECORD.pack, _SEALED.pack, _ASKED.pack
_CODES = {stage: code for code, stage in enumerate(STAGES, start=1)}
_NO_STEP = 2**64 - 1  # in the place of a step
_FAR = 2**32 - 1  # in the place of a distance that is unknown, or as long
_VALUES = struct.Struct("QQddI")  # number, step, loss, gradient norm, which are set; its checksum follows
_VALUES_AT = _SIZE
_VALUES_SIZE = _VALUES.size + _ASKED.size
_RING = 1024
_RING_END = _VALUES_AT + _RING * _VALUES_SIZE
_SAMPLE = struct.Struct("QII124s")  # step, length, -, text; then its checksum
_SAMPLE_BYTES = 124
_FULL_SIZE = _RING_END + _SAMPLE.size + _ASKED.size
_SAMPLE_PLACE = slice(_RING_END, _FULL_SIZE)
_LOSS, _GRAD_NORM = 1, 2
_pack_values, _pack_sample = _VALUES.pack, _SAMPLE.pack
_NOTICE_NS = 1_000_000_000
_TRIES = 100
_LONGEST_WINDOW = 40
_HIGH_FD = 900


class Beat(
    namedtuple(
        "Beat", ("beats", "t_ns", "step", "stage", "stage_t_ns", "stage_step", "every"), defaults=(None,)
    )
):
    """The last beat of a rank: its number from 1, its time, and where the training stood.

    Times are nanoseconds of CLOCK_BOOTTIME. `stage_t_ns` and `stage_step` are when and at which step
    the stage began. `every` is the smallest distance between two consecutive reported steps.
    What the script did not report is None.
    """

    __slots__ = ()

    beats: int
    t_ns: int
    step: int | None
    stage: str | None
    stage_t_ns: int | None
    stage_step: int | None
    every: int | None


class Told(namedtuple("Told", ("values", "sample_step", "sample"))):
    """The values that a rank has reported: `values` as (number from 1, step, loss, gradient norm), oldest first.

    `sample` is the last one that it named, at `sample_step`. What it did not report is None.
    """

    __slots__ = ()

    values: list[tuple[int, int | None, float | None, float | None]]
    sample_step: int | None
    sample: str | None


def beat(
    step: int | None = None,
    stage: str | None = None,
    *,
    loss: float | None = None,
    grad_norm: float | None = None,
    sample: str | None = None,
) -> None:
    """Report that this rank is alive, its step and its stage; `None` is "unchanged".

    `loss` and `grad_norm` are those of the step, of this rank or of all; `sample` names the data of the step, a shard
    for example: its first 124 bytes are kept.
    Does nothing where `PREFECT_FT_HEARTBEAT` does not name a file, and in processes that a beating
    rank starts (data loaders). Never raises; a step that is not an integer from 0, a stage that is not
    one of `STAGES` or a value that is not a number is ignored.
    """
    try:
        _process.record(step, stage, loss, grad_norm, sample)
    except Exception:  # after any error: the training is worth more than its heartbeat
        return


def should_checkpoint() -> bool:
    """Return whether a checkpoint is wanted before a planned stop: true once for each request.

    It takes less than a microsecond: call it after each step. Every rank is asked, but not all at the
    same step: ranks that save together must agree first (for example by an all-reduce of this value). Never
    raises; false where `PREFECT_FT_HEARTBEAT` does not name a file, and in processes that a rank starts.
    """
    try:
        return _process.is_asked()
    except Exception:  # as in `beat`
        return False


def skips(step: int) -> bool:
    """Return whether to consume the batch of a step without training on it, on all ranks alike.

    The orchestrator names the steps in `PREFECT_FT_SKIP_STEPS` after a failure that recurred at its step. To skip one:
    read its batch, advance the step counter, update nothing. Never raises; false where no steps are named.
    """
    try:
        return _skipping.covers(step)
    except Exception:  # as in `beat`
        return False


def skip_eval(step: int) -> bool:
    """Return whether to leave out the validation that begins at a step, on all ranks alike.

    The orchestrator names that step in `PREFECT_FT_SKIP_EVAL_AT_STEP` after a failure in a validation, which is then
    not executed again: the training continues with the loop after it. Never raises; false where no step is named.
    """
    return os.environ.get(_SKIPPED_EVAL, "") == str(step)


def _windows(text: str) -> tuple[tuple[int, int], ...]:
    """Read `195-234,301-310`; what cannot be read is left out."""
    windows = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdecimal() and last.isdecimal() and len(part) < _LONGEST_WINDOW:
            windows.append((int(first), int(last)))
    return tuple(windows)


class _Skipping:
    """The steps to be skipped, as the environment names them; a parked process gets its environment late."""

    __slots__ = ("_text", "_windows")

    def __init__(self) -> None:
        self._text = ""
        self._windows: tuple[tuple[int, int], ...] = ()

    def covers(self, step: int) -> bool:
        text = os.environ.get(_SKIPPED, "")
        if text != self._text:
            self._text, self._windows = text, _windows(text)
        return any(first <= step <= last for first, last in self._windows)


_skipping = _Skipping()


def ask_checkpoint(path: str | os.PathLike[str]) -> None:
    """Make `should_checkpoint` return true in the rank whose heartbeat file this is or will be; the agent's side.

    Raises OSError, ValueError where the file is something else.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        content = os.pread(fd, _SIZE, 0)
        if not content:  # the rank has neither asked nor beaten yet
            content = _MAGIC
            os.pwrite(fd, content.ljust(_SIZE, b"\0"), 0)
        if not content.startswith(_MAGIC):
            raise ValueError(f"{path} is not a heartbeat file")
        (asked,) = _ASKED.unpack_from(
            content.ljust(_SIZE, b"\0"), _ASKED_AT
        )  # shorter while a rank claims it
        os.pwrite(fd, _ASKED.pack((asked + 1) % 2**32), _ASKED_AT)
    finally:
        os.close(fd)


def read(path_or_fd: str | os.PathLike[str] | int) -> Beat | None:
    """Read the last beat; `None` if there was none yet or the file is not a heartbeat.

    `None` also if the rank was killed in the middle of a store. Never maps the file, so that nothing
    a rank does to it can kill the reader. Raises OSError where a file that exists cannot be read.
    """
    if isinstance(path_or_fd, int):
        return _read(path_or_fd)
    try:
        fd = os.open(path_or_fd, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    try:
        return _read(fd)
    finally:
        os.close(fd)


def _read(fd: int) -> Beat | None:
    for _ in range(_TRIES):
        content = os.pread(fd, _SIZE, 0)
        if len(content) != _SIZE or not content.startswith(_MAGIC):
            return None
        record, checksum = _SEALED.unpack_from(content, _RECORD_AT)
        if crc32(record) == checksum:
            return _unpack(record)
        if not any(record):
            return None
    return None


def read_told(path: str | os.PathLike[str], after: int = 0) -> Told:
    """Read the values that a rank has reported after the `after`-th, as far as they still exist, and its sample.

    Half-stored and overwritten values are left out. Raises OSError where a file that exists cannot be read.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return Told([], None, None)
    try:
        if os.fstat(fd).st_size != _FULL_SIZE or not os.pread(fd, _SIZE, 0).startswith(_MAGIC):
            return Told([], None, None)
        return _unpack_values(os.pread(fd, _FULL_SIZE - _VALUES_AT, _VALUES_AT), after)
    finally:
        os.close(fd)


def _unpack_values(content: bytes, after: int) -> Told:
    values = []
    for at in range(0, _RING * _VALUES_SIZE, _VALUES_SIZE):
        number, step, loss, grad_norm, which = _VALUES.unpack_from(content, at)
        if number > after and _is_sealed(content[at : at + _VALUES_SIZE]):
            values.append(
                (
                    number,
                    None if step == _NO_STEP else step,
                    loss if which & _LOSS else None,
                    grad_norm if which & _GRAD_NORM else None,
                )
            )
    values.sort(key=lambda each: each[0])
    sealed = content[_RING_END - _VALUES_AT :]
    step, length, _, text = _SAMPLE.unpack_from(sealed)
    if not length or not _is_sealed(sealed):
        return Told(values, None, None)
    return Told(values, None if step == _NO_STEP else step, text[:length].decode("utf-8", "replace"))


def _is_sealed(stored: bytes) -> bool:
    return _pack_checksum(crc32(stored[: -_ASKED.size])) == stored[-_ASKED.size :]


def _unpack(record: bytes) -> Beat:
    beats, t_ns, step, part = _RECORD.unpack(record)
    stage_t_ns, stage_step, code, every = _STAGE_PART.unpack(part)
    has_stage = 0 < code <= len(STAGES)
    return Beat(
        beats=beats,
        t_ns=t_ns,
        step=None if step == _NO_STEP else step,
        stage=STAGES[code - 1] if has_stage else None,
        stage_t_ns=stage_t_ns if has_stage else None,
        stage_step=stage_step if has_stage and stage_step != _NO_STEP else None,
        every=every if 0 < every < _FAR else None,
    )


def _number(value: object) -> float | None:
    """Return a value of another library as a number; None: it is not one."""
    try:
        return float(value)  # type: ignore[arg-type]  # that is the question
    except Exception:  # it runs code of the argument's class
        return None


class _Writer:
    """The one writer of a heartbeat file, for as long as its process lives."""

    __slots__ = (
        "_answered",
        "_beats",
        "_every",
        "_fd",
        "_identity",
        "_is_full",
        "_map",
        "_notice_due_ns",
        "_places",
        "_sample",
        "_stage",
        "_stage_began",
        "_stage_part",
        "_step",
        "_values",
    )

    def __init__(self, path: str) -> None:
        self._fd, self._map = _claim(path)
        self._identity = os.fstat(self._fd)[1:3]
        self._beats = self._notice_due_ns = 0
        self._step = _NO_STEP
        self._stage: str | None = None
        self._stage_began = (0, _NO_STEP, 0)
        self._every = _FAR
        self._stage_part = _STAGE_PART.pack(0, _NO_STEP, 0, _FAR)
        self._answered = bytes(_ASKED.size)
        self._values = 0
        self._is_full = False
        self._places: list[slice] = []
        self._sample: object = None

    def is_asked(self) -> bool:
        asked = self._map[_ASKED_PLACE]
        is_new = asked != self._answered
        self._answered = asked
        return is_new

    def record(self, step: object, stage: object, loss: object, grad_norm: object, sample: object) -> None:
        # The hot path, about a microsecond: most of it is the clock, the checksum and two struct calls.
        now_ns = clock_gettime_ns(CLOCK_BOOTTIME)
        if step is not None:
            if type(step) is int and 0 <= step < _NO_STEP:
                if 0 < step - self._step < self._every:
                    self._come_closer(step)
                self._step = step
            else:
                self._take_foreign_step(step)
        if stage is not self._stage and stage is not None:
            self._enter(stage, now_ns)
        if loss is not None or grad_norm is not None:
            self._store_values(loss, grad_norm)
        if sample is not None and sample is not self._sample:
            self._store_sample(sample)
        self._beats = beats = self._beats + 1
        record = _pack_record(beats, now_ns, self._step, self._stage_part)
        # One copy: `pack_into` would first zero the place, visible to the reader.
        self._map[_SEALED_PLACE] = _seal(record, crc32(record))
        if now_ns >= self._notice_due_ns:
            self._notify(now_ns)

    def _store_values(self, loss: object, grad_norm: object) -> None:
        """Store the values of a step into the ring; a non-finite value reaches the reader at once."""
        which, is_finite = 0, True
        a = b = 0.0
        if loss is not None:
            number = loss if isinstance(loss, float) else _number(loss)
            if number is not None:
                a, which, is_finite = number, _LOSS, number - number == 0.0
        if grad_norm is not None:
            number = grad_norm if isinstance(grad_norm, float) else _number(grad_norm)
            if number is not None:
                b, which, is_finite = number, which | _GRAD_NORM, is_finite and number - number == 0.0
        if not which or not (self._places or self._grow()):
            return
        self._values = count = self._values + 1
        values = _pack_values(count, self._step, a, b, which)
        self._map[self._places[count % _RING]] = values + _pack_checksum(crc32(values))
        if not is_finite:
            self._notice_due_ns = 0

    def _store_sample(self, sample: object) -> None:
        """Store the name of the step's data."""
        self._sample = sample
        try:
            text = sample.encode()  # type: ignore[attr-defined]  # almost always it is a text, and one of Unicode
        except (AttributeError, UnicodeError):
            text = str(sample).encode("utf-8", "replace")
        if text and (self._places or self._grow()):
            packed = _pack_sample(self._step, len(text), 0, text)
            self._map[_SAMPLE_PLACE] = packed + _pack_checksum(crc32(packed))

    def _grow(self) -> bool:
        """Make room for values, on their first report; false where there is none, and then do not retry."""
        if self._is_full:
            return False
        self._is_full = True
        try:
            if os.fstat(self._fd)[1:3] != self._identity:
                return False  # as in `_notify`
            os.posix_fallocate(
                self._fd, 0, _FULL_SIZE
            )  # a store into a hole of a full disk would be a bus error
            self._map = mmap.mmap(self._fd, _FULL_SIZE)
        except OSError:
            return False
        self._places = [slice(at, at + _VALUES_SIZE) for at in range(_VALUES_AT, _RING_END, _VALUES_SIZE)]
        return True

    def _take_foreign_step(self, step: object) -> None:
        """Accept the integers of NumPy and torch, and ignore anything else."""
        try:
            number = index(step)  # type: ignore[arg-type]  # that is the question
        except Exception:  # it runs code of the argument's class
            return
        if 0 <= number < _NO_STEP:
            if 0 < number - self._step < self._every:
                self._come_closer(number)
            self._step = number

    def _come_closer(self, step: int) -> None:
        """Note a distance between two steps that is smaller than those before."""
        self._every = step - self._step
        self._stage_part = _STAGE_PART.pack(*self._stage_began, self._every)

    def _enter(self, stage: object, now_ns: int) -> None:
        code = _CODES.get(stage) if isinstance(stage, str) else None
        if code is None or STAGES[code - 1] == self._stage:
            return
        self._stage = STAGES[code - 1]
        self._stage_began = (now_ns, self._step, code)
        self._stage_part = _STAGE_PART.pack(*self._stage_began, self._every)
        self._notice_due_ns = now_ns

    def _notify(self, now_ns: int) -> None:
        """Notify inotify that something was stored.

        A script may close all descriptors and open its own under our number, so check first.
        """
        self._notice_due_ns = now_ns + _NOTICE_NS
        if os.fstat(self._fd)[1:3] == self._identity:
            os.pwrite(self._fd, b"\0", _NOTICE_AT)


def _claim(path: str) -> tuple[int, mmap.mmap]:
    """Claim the file for this process, empty; raises where it is another's or something else.

    A checkpoint requested before the first beat is requested of this process.

    The lock ends with the process, not with its children: a restarted rank gets it.
    Writing all bytes allocates the space now: a store into a hole on a full disk would be a bus error.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    try:
        found = os.pread(fd, _SIZE, 0)
        size = os.fstat(fd).st_size
        ours = (size == _SIZE and not any(found)) or found.startswith(_MAGIC)
        if not stat.S_ISREG(os.fstat(fd).st_mode) or not (ours or not found):
            raise ValueError(f"{path} is not a heartbeat file")
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        has_beaten = any(found[_SEALED_PLACE])  # another process, before this one
        if found:
            os.ftruncate(fd, len(found))  # values of another process
        os.pwrite(fd, _MAGIC.ljust(_SIZE if has_beaten else _ASKED_AT, b"\0"), 0)
        os.posix_fallocate(fd, 0, _SIZE)  # keeps what the agent may just have requested
        return fd, mmap.mmap(fd, _SIZE)
    except BaseException:
        os.close(fd)
        raise


def _offer_stacks(path: str) -> None:
    """Have faulthandler write to this file on request, unless the script uses the signal itself.

    The descriptor is high: a script that closes all descriptors and opens its own must not get stacks in its files.
    """
    try:
        import faulthandler  # noqa: PLC0415  (only ranks that beat need it)

        with open("/proc/self/status", "rb") as status:
            masks = [line.split()[1] for line in status if line[:7] in (b"SigCgt:", b"SigIgn:")]
        if any(int(mask, 16) >> (STACKS_SIGNAL - 1) & 1 for mask in masks):
            return
        low = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            fd = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _HIGH_FD)
        finally:
            os.close(low)
        faulthandler.register(STACKS_SIGNAL, file=fd, all_threads=True, chain=False)
    except Exception:  # a limit on descriptors, a Python without faulthandler: then there are no stacks
        return


def _outlive_notice(path: str) -> None:
    """Survive a scheduler's SIGTERM: this process's agent gets it too and asks for a checkpoint.

    Where the agent ends the rank, it announces that first. A process that the rank has forked ends, as always.
    """
    try:
        import signal  # noqa: PLC0415  (only ranks under such a scheduler need it)

        if not os.environ.get(NOTICE_VARIABLE) or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            return

        def heard(*_: object) -> None:
            if os.path.exists(path + ENDS):
                signal.signal(signal.SIGTERM, signal.SIG_DFL)
                signal.raise_signal(signal.SIGTERM)

        def in_child() -> None:
            if signal.getsignal(signal.SIGTERM) is heard:  # which would have to wait for the end of a read
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

        signal.signal(signal.SIGTERM, heard)
        signal.siginterrupt(signal.SIGTERM, False)
        os.register_at_fork(after_in_child=in_child)
    except Exception:  # this is not the main thread
        return


class _Process:
    """Where the beats of this process go; opened by the first beat, or the first question."""

    __slots__ = ("is_asked", "record")

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self.record, self.is_asked = self._open_and_record, self._open_and_ask

    def _silence(self) -> None:
        self.record, self.is_asked = self._ignore, self._answer_no

    def _open(self) -> None:
        self._silence()  # do not retry after an error below
        path = os.environ.get(_VARIABLE)
        if path:
            writer = _Writer(path)
            _offer_stacks(path + STACKS)
            _outlive_notice(path)
            self.record, self.is_asked = writer.record, writer.is_asked

    def _open_and_record(
        self, step: object, stage: object, loss: object, grad_norm: object, sample: object
    ) -> None:
        self._open()
        self.record(step, stage, loss, grad_norm, sample)

    def _open_and_ask(self) -> bool:
        self._open()
        return self.is_asked()

    def _ignore(self, step: object, stage: object, loss: object, grad_norm: object, sample: object) -> None:
        """Do nothing: no agent reads, or this process is not the rank."""

    def _answer_no(self) -> bool:
        return False

    def after_fork(self) -> None:
        """Distinguish a rank's child, which is silent, from a rank forked by a parent that is not one."""
        if os.environ.get(_VARIABLE):
            self._silence()
        else:
            self._reset()


_process = _Process()
os.register_at_fork(after_in_child=_process.after_fork)
