"""Which names are checkpoints, and their steps. Pure text: nothing here looks at a disk.

Two readers with the same methods: `UsualNames` knows the names that training frameworks give,
`PatternNames` the one that a user wrote down.
"""

from __future__ import annotations

import re
from enum import Enum
from functools import lru_cache
from typing import FrozenSet, Match, Optional, Pattern, Tuple, Union

Reading = Union[int, str, None]
"""A step; or, as text, why this name never counts; or `None`: not a checkpoint's name."""


class Overwritten(Enum):
    """How sure it is that a name without a step is a checkpoint, written over and over (`snapshot.pt`)."""

    SURE = "sure"
    LIKELY = "likely"
    """Downloaded weights may have such a name too: it counts once it has been seen being written."""


SYSTEM = "{system}"
"""The placeholder for a system's name in the path of checkpoints on its own disk."""

UNKNOWN_NAME = "its name is not known as a checkpoint's"
TEMPORARY_NAME = "its name is a temporary one"
PART_NAME = "it is one part of several: use a directory for each step, a manifest, or a pattern"
COMPANION_NAME = "by its name it goes with a checkpoint and is none: use a pattern if it is one"

DATE_NAME = "its name has a date, but no step and no time: use a pattern"

_STEP = r"[-_=.]?(?P<step>[0-9]{1,18})(?![0-9a-z])"
_WHOLE_STEP = rf"{_STEP}(?!\.[0-9])"
"""Of words beside which a decimal is a size, a version or a loss; epoch_1.5 is in epoch 1."""
# The first that is found decides, so that epoch=1-step=100 is step 100 and an epoch counts last.
_WORDS = (
    rf"(?:global[-_]?)?steps?{_STEP}",
    rf"iter(?:ation)?s?{_STEP}",
    rf"(?:checkpoint|ckpt|chkpt){_WHOLE_STEP}",
    rf"ba(?:tch)?{_STEP}",
    rf"ep(?:och)?{_STEP}",
    rf"(?:model|weights|params|state|save|snapshot){_WHOLE_STEP}",
)
_USUAL = tuple(re.compile(rf"(?<![a-z]){word}") for word in _WORDS)
# fairseq's name within an epoch; steps are at least as many as epochs, and in STEP_RANK more than ranks.
_EPOCH_AND_STEP = re.compile(r"checkpoint_(?P<epoch>[0-9]{1,9})_(?P<step>[0-9]{1,18})\.pt$")
# checkpoint_2026-11-29_07-29-07.604357 (Ray), CKPT+2026-11-29+07-51-19+00 (SpeechBrain), ckpt_20261129_075119.pt.
_DATE = re.compile(
    r"[-_.+ ]*(?<![0-9])(?P<year>20[0-9]{2})(?P<in_date>[-_.]?)(?P<month>0[1-9]|1[0-2])(?P=in_date)"
    r"(?P<day>0[1-9]|[12][0-9]|3[01])"
    r"(?P<time>[-_.+t ]{0,2}(?P<hour>[01][0-9]|2[0-3])(?P<in_time>[-_.:h]?)(?P<minute>[0-5][0-9])"
    r"(?:[-_.:m]?(?P<second>[0-5][0-9])(?:[.,][0-9]{1,9})?)?(?:[-+][0-9]{2}(?::?[0-9]{2})?|z)?)?(?![0-9])[-_+]*"
)
_DATED = re.compile(r"(?<![a-z])(?:checkpoint|ckpt|chkpt|model|weights|params|state|save|snapshot)(?![a-z])")
"""Of a name whose only number is a date."""
_BARE = re.compile(r"(?P<step>[0-9]{1,18})(?:\.[a-z][^.]*)?$")

# tmp-checkpoint-100 (transformers), 100.orbax-checkpoint-tmp-17 (orbax), ckpt-100_temp and
# .tempstate17 (TensorFlow), NAME.incomplete (huggingface_hub), tmpab12cd_ (tempfile).
_UNFINISHED = "temp|temporary|part|partial|incomplete|unfinished|inprogress|writing|saving|swp|crdownload"
_TEMPORARY = re.compile(rf"(?s)[.~#]|.*~$|.*(?<![a-z0-9])(?:tmp|tempstate|(?:{_UNFINISHED})(?![a-z0-9]))")
_TEMPORARY_INSIDE = re.compile(r"(?s)tmp|.*~$|.*\.(?:tmp|temp|part|partial|incomplete)(?![a-z0-9])")
_SET_ASIDE = re.compile(r"(?<![a-z0-9])(?:bak|backup|old|orig|corrupt|corrupted|bad|broken)(?![a-z0-9])")
# lora-rank16-step-100 is whole, step-100-rank0 and rank0-step-100 are not.
_PART = re.compile(
    r"^(?:rank|shard)[-_=.]?[0-9]|(?<![a-z])(?:rank|shard)[-_=.]?[0-9]+(?:\.[a-z]+)?$|[0-9]-of-[0-9]"
)
OF_A_RANK = re.compile(r"(?<![a-z])(?:rank|shard)[-_=.]?[0-9]+", re.IGNORECASE)
"""What says in a name which rank's part it is."""
_COMPANION_WORDS = (
    "optimizer|optim|scheduler|scaler|rng|metrics?|eval|results?|stats|summary|report|config|args|logs?|"
    "samples?|trace|profile"
)
# At an end of the name only: epoch=1-step=100-eval_loss=0.5 is a checkpoint.
_COMPANION = re.compile(
    rf"^(?:{_COMPANION_WORDS})(?![a-z0-9])|(?<![a-z0-9])(?:{_COMPANION_WORDS})(?:\.[a-z]+)?$"
)
_STATE = re.compile(r"(?<![a-z])(?:optimizer|optim|opt|scheduler|scaler)(?![a-z])")
"""Of a file with a part of a checkpoint's state that is not in the model's. Not rng: its number may be a rank's."""
_SURE_WORDS = frozenset(("snapshot", "ckpt", "checkpoint", "chkpt", "last", "latest", "current", "resume"))
_LIKELY_WORDS = frozenset(("model", "weights", "params", "state", "save", "saved"))
_ASIDE = re.compile(
    r"(?<![a-z])(?:best|ema|swa|averaged?|fp16|bf16|int8|quantized|exported|predictions?|embeddings?|weights[-_]only)(?![a-z])"
)
"""Of a name of best or averaged weights, or of what is made of a checkpoint."""
# Lightning's, with whatever stands before: sample-mnist-epoch=02-val_loss=0.32.ckpt is a checkpoint.
_BY_LIGHTNING = re.compile(r"(?<![a-z])(?:epoch|step)=[0-9].*\.ckpt$")
# Best models, exports and downloads: resuming from them would lose steps.
_OTHER_WORDS = frozenset(
    (
        "best",
        "final",
        "init",
        "initial",
        "pretrained",
        "base",
        "ema",
        "teacher",
        "copy",
        "info",
        "meta",
        "metadata",
    )
)
# Not .json: `latest.json` and its like point to a checkpoint.
_WEIGHTS = re.compile(
    r"(?P<stem>.+?)\.(?:pt|pth|ckpt|bin|safetensors|npz|pkl|pickle|msgpack|h5|hdf5|keras|tar|zip|ubj)"
)
OF_A_RUN = re.compile(r"\.prefect-ft|[0-9]{8}_[0-9]{6}_restartable.*")
"""What runs create in their model directory, which may hold checkpoints too."""

_NO_CHECKPOINT = re.compile(
    r"\.(?:log|txt|md|csv|tsv|html|ya?ml|toml|py|sh|out|err|png|jpe?g|gif|svg|webp|pdf|mp4|wav|lock|md5|sha1"
    r"|sha256|crc|onnx|gguf|ggml|tflite|torchscript|mlmodel|engine|trt|parquet|arrow|feather)$|\.manifest\.json$"
)


def place_on(path: str, system: str) -> str:
    """Return where a system's own disk has the checkpoints of a path in which `{system}` may stand."""
    return path.replace(SYSTEM, system)


def is_temporary_inside(base: str) -> bool:
    """Return whether a file in a checkpoint's tree, where hidden names and parts are usual, is temporary."""
    return bool(_TEMPORARY_INSIDE.match(base.lower()))


class UsualNames:
    """The names that training frameworks give their checkpoints, all directly in one directory."""

    def enters(self, directory: str) -> bool:
        """Return whether checkpoints are inside this directory; here the directory itself is one."""
        del directory
        return False

    def read(self, name: str) -> Reading:
        """Return the step in a name; of one with a date and a time only, these as a number: 20261129072907."""
        return _usual_reading(name.lower())[0]

    def is_dated(self, name: str) -> bool:
        """Return whether what was read in a name is a date: it orders the checkpoints, and is no step."""
        return _usual_reading(name.lower())[1]

    def overwritten(self, name: str) -> Optional[Overwritten]:
        """Return how surely scripts overwrite a name without a step with each checkpoint; `None`: they do not."""
        return _overwritten(name.lower())

    def is_aside(self, name: str) -> bool:
        """Return whether a name is that of a best model, of averaged weights or the like.

        Many trainers save these beside their checkpoints, without the optimizer's state.
        """
        return _ASIDE.search(name.lower()) is not None

    def resembles(self, name: str) -> bool:
        """Return whether a name that is not a checkpoint's has, or may have, a step in it."""
        return _resembles(name.lower())


class PatternNames:
    """One user's names: text with one `{step}`, `*` for anything else, and at most one `/`.

    Without `{step}` it names files that are overwritten with each checkpoint.
    """

    def __init__(self, pattern: str) -> None:
        """Raises ValueError for a pattern that can match nothing."""
        if pattern.count("{step}") > 1:
            raise ValueError(f"pattern {pattern!r}: write {{step}} once, where the step's number stands")
        levels = pattern.split("/")
        if len(levels) > 2 or any(level in ("", ".", "..") for level in levels):
            raise ValueError(
                f"pattern {pattern!r}: write NAME or DIRECTORY/NAME, relative to the checkpoints"
            )
        self._has_step = "{step}" in pattern
        self._whole = _compiled(pattern)
        self._directory = _compiled(levels[0]) if len(levels) > 1 else None
        # A pattern that itself looks like a temporary name is meant that way.
        self._trusted = _reads_temporary(pattern.replace("{step}", "1").replace("*", "x"))

    def enters(self, directory: str) -> bool:
        """Return whether checkpoints are inside this directory."""
        return bool(self._directory and self._directory.match(directory))

    def read(self, name: str) -> Reading:
        """Return the step of a name, `DIRECTORY/NAME` where the pattern has two levels."""
        match = self._whole.match(name) if self._has_step else None
        if not match:
            return None
        return TEMPORARY_NAME if _reads_temporary(name) and not self._trusted else int(match["step"])

    def is_dated(self, name: str) -> bool:
        """Return False: the user has named the step."""
        del name
        return False

    def overwritten(self, name: str) -> Optional[Overwritten]:
        """Return whether the name matches a pattern without a step; `None`: it does not."""
        is_named = not self._has_step and self._whole.match(name)
        return Overwritten.SURE if is_named and (self._trusted or not _reads_temporary(name)) else None

    def is_aside(self, name: str) -> bool:
        """Return False: the user has named what counts."""
        del name
        return False

    def resembles(self, name: str) -> bool:
        """Return whether a name that the pattern does not match may still be a checkpoint's."""
        return _USUAL_NAMES.read(name) is not None or _USUAL_NAMES.resembles(name)


@lru_cache(maxsize=8192)  # every scan asks for the same names: it halves the cost of a large directory
def _usual_reading(lowered: str) -> Tuple[Reading, bool]:
    """Return what a name says, and whether that is a date."""
    if lowered.startswith(".") or _NO_CHECKPOINT.search(lowered):
        return None, False
    match = _EPOCH_AND_STEP.match(lowered)
    match = match if match and int(match["step"]) >= int(match["epoch"]) else _BARE.match(lowered)
    date = _date_in(lowered) if match is None else None
    rest = _DATE.sub("_", lowered, count=1) if date is not None else lowered
    for word in _USUAL:
        match = match or word.search(rest)
    if match is not None:
        return _refusal(lowered) or int(match["step"]), False
    if date is None or not _DATED.search(rest) or not _OTHER_WORDS.isdisjoint(_words(rest)):
        return None, False
    if not date["time"] and _overwritten(lowered) is not None:
        return None, False  # all day, or all the run: of several such files the newest counts
    return (_refusal(rest) or (_number_of(date) if date["time"] else DATE_NAME)), True


def _date_in(lowered: str) -> Optional[Match[str]]:
    """Return the date in a name; `None`: there is none, or it may be a number."""
    date = _DATE.search(lowered)
    return date if date is not None and (date["in_date"] or date["time"]) else None


def _number_of(date: Match[str]) -> int:
    parts = (date[part] or "00" for part in ("year", "month", "day", "hour", "minute", "second"))
    return int("".join(parts))


_USUAL_NAMES = UsualNames()


def holds_weights(name: str) -> bool:
    """Return whether a name has an ending under which frameworks save weights."""
    return bool(_WEIGHTS.fullmatch(name.lower()))


@lru_cache(maxsize=8192)
def state_step(name: str) -> Optional[int]:
    """Return the step of a file that holds the state of an optimizer or the like; `None`: it is none."""
    lowered = name.lower()
    match = _WEIGHTS.fullmatch(lowered)
    if match is None or not _STATE.search(lowered) or _reads_temporary(lowered) or _SET_ASIDE.search(lowered):
        return None
    stem = OF_A_RANK.sub("", match["stem"])
    numbers = re.findall(r"[0-9]{1,18}", stem)
    return int(numbers[-1]) if numbers and not _PART.search(stem) else None


@lru_cache(maxsize=8192)
def goes_with(name: str, own: str) -> bool:
    """Return whether a file holds the state of an optimizer or the like, and is overwritten with `own`.

    That is of one name for all steps, and not of another kind, as `best_optimizer.pt` beside `last.pt`.
    """
    lowered, mine = name.lower(), own.lower()
    match = _WEIGHTS.fullmatch(lowered)
    if match is None or not _STATE.search(lowered) or _STATE.search(mine) or any(map(str.isdigit, name)):
        return False
    others = (_words(match["stem"]) - _words(mine)) & _OTHER_WORDS
    return not (others or _reads_temporary(lowered) or _SET_ASIDE.search(lowered))


@lru_cache(maxsize=8192)
def _resembles(lowered: str) -> bool:
    if _reads_temporary(lowered) or OF_A_RUN.fullmatch(lowered):
        return False
    if not any(character.isdigit() for character in lowered):
        return False
    has_word = any(word.search(lowered) for word in _USUAL)
    return has_word or not (_NO_CHECKPOINT.search(lowered) or _COMPANION.search(lowered))


@lru_cache(maxsize=8192)
def _overwritten(lowered: str) -> Optional[Overwritten]:
    match = _WEIGHTS.fullmatch(lowered)
    if lowered.startswith(".") or not match or _refusal(lowered):
        return None
    words = _words(match["stem"])
    if words & _OTHER_WORDS:
        return None
    if words & _SURE_WORDS:
        return Overwritten.SURE
    date = _date_in(match["stem"])
    others = _words(_DATE.sub("_", match["stem"], count=1)) if date and not date["time"] else words
    is_likely = words & _LIKELY_WORDS and not any(word.isdigit() for word in others)
    return Overwritten.LIKELY if is_likely else None


def _words(text: str) -> FrozenSet[str]:
    return frozenset(re.findall(r"[a-z]+|[0-9]+", text))


def _reads_temporary(name: str) -> bool:
    return any(_TEMPORARY.match(level) for level in name.lower().split("/"))


def _refusal(lowered: str) -> Optional[str]:
    """Return why a name with a step in it is not a checkpoint."""
    if _reads_temporary(lowered):
        return TEMPORARY_NAME
    if _SET_ASIDE.search(lowered):
        return "its name sets it aside"
    if _PART.search(lowered):
        return PART_NAME
    if _COMPANION.search(lowered) and not _BY_LIGHTNING.search(lowered):
        return COMPANION_NAME
    return None


def _compiled(pattern: str) -> Pattern[str]:
    translated = {"{step}": "(?P<step>[0-9]{1,18})", "*": "[^/]*"}
    pieces = re.split(r"(\{step\}|\*)", pattern)
    return re.compile("".join(translated.get(piece) or re.escape(piece) for piece in pieces) + r"\Z")
