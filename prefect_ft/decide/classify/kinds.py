"""The kind of an exception whose text the catalogue does not know: by its name, its errno, where it was raised.

Owns the tables of errors of the operating system, of HTTP status codes, of words in names of exceptions and of
libraries. It corrects only answers that say no more than that something failed.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from prefect_ft.decide.classify.reading import is_library
from prefect_ft.decide.classify.said import first, said_of_exception
from prefect_ft.decide.classify.unreadable import OF_PEERS
from prefect_ft.model import FailureClass
from prefect_ft.signatures import Signature

if TYPE_CHECKING:
    from prefect_ft.decide.classify.tracebacks import Raised

__all__ = ["as_checked", "as_kind", "is_quoting", "kind_said", "leads_to_more", "only_tells", "says_little"]

_GENERAL = frozenset(
    (
        "boosting-error", "py-arithmetic", "py-eof", "py-file-exists", "py-os-error", "py-runtime", "py-system-error",
        "py-value", "python-exception", "tf-internal-error", "tf-invalid-argument",
    )
)  # fmt: skip
"""Answers behind which any kind of failure may be hidden."""

_OF_A_LIBRARY = frozenset(("py-attribute", "py-index", "py-key", "py-not-implemented"))
"""Errors of the program, unless a library raises them where it reads only the program's options."""

_PASSING = ("network", "numeric", "port_in_use", "storage")
"""Classes of assertions that may hold the next time."""

_CHECK, _CHECK_FAILED = "crash-absl-check", "Check failed"
"""The catalogue's answer for a check in C++, and how one begins whose message the program's authors wrote."""

_BY_A_SENTENCE = frozenset(("cuda-other-error", "net-wandb", "py-key", "py-memory-error", "py-pickling"))
"""Answers that a message corrects if it is a sentence, and not only a key."""

_SENTENCE_WORDS = 4

_ERRNO = re.compile(
    r"(?i)\[Errno (-?\d{1,3})\]|\(os error (\d{1,3})\)|\berrno(?:\s*[:=]\s*|\s+)(\d{1,3})\b|\bError #(\d{1,3})\b"
)
_CLASS_OF_ERRNO: dict[int, FailureClass] = {
    **dict.fromkeys((1, 2, 13, 20, 21, 24, 36, 40), "config"),
    **dict.fromkeys((5, 27, 28, 30, 37, 116, 121, 122), "storage"),
    98: "port_in_use",
    **dict.fromkeys((32, 99, 100, 101, 102, 103, 104, 107, 108, 110, 111, 112, 113), "network"),
}
"""Linux's numbers; others say nothing of a cause."""

_WORDS: tuple[tuple[FailureClass, str], ...] = (
    (
        "storage",
        (
            r"(?i)no space left on device|disk quota exceeded|read-only file system|stale file handle|"
            r"input/output error"
        ),
    ),
    ("port_in_use", r"(?i)address already in use"),
    (
        "network",
        (
            r"(?i)connection (?:refused|reset|timed out|aborted)|network is unreachable|no route to host|broken pipe|"
            r"host (?:is )?(?:unreachable|down)"
        ),
    ),
    ("config", r"(?i)no such file or directory|permission denied|(?:not|is) a directory|too many open files"),
)
"""The system's own words for these numbers, where a library prints them without the number."""

_STATUS = re.compile(
    r"(?i)\b(?:HTTP(?: status| error| code)*|status(?:[ _]?code)?|error code|response)\b[ :=(]{1,4}([45]\d\d)\b|"
    r"\b([45]\d\d) (?:Client|Server) Error|^(?:GET|POST|PUT|PATCH|DELETE) ([45]\d\d)\b"
)
_PASSING_STATUS = frozenset((408, 409, 423, 425, 429))

_NAMES: tuple[tuple[FailureClass, str], ...] = (
    ("oom_device", r"^(?:\w*OutOfMemory(?:Error)?|\w*ResourceExhausted(?:Error)?|OOMError|CUDAMemoryError)$"),
    (
        "network",
        (
            r"^\w*(?:Connect(?:ion)?|Timeout|TimedOut|Network|Socket|Unreachable|ServiceUnavailable|Rendezvous|Proxy|"
            r"SSL|DNS|Transport|RateLimit|TooManyRequests)\w*(?:Error|Exception)$|"
            r"^(?:API|Api|Server|Service|Gateway)(?:Error|Exception)$|^\w*(?:Timeout|Timed_?Out)$"
        ),
    ),
    (
        "config",
        (
            r"^\w*(?:Config(?:uration)?|Invalid(?:Parameter|Option|Setting)|"
            r"Settings?|Argument|Option|Usage|Validation|Credentials?|Unauthorized|Forbidden|"
            r"Auth(?:entication|orization)?|License|Permission\w*|AccessDenied|Gated\w*|Import|Package\w*|Dependency|"
            r"Requirement|Version\w*|Unsupported(?:Version|Platform|Hardware)|NoSuch(?:Bucket|Key|File)|NotInstalled|"
            r"(?:File|Path|Name(?:space)?|Model|Repository|Repo|Revision|"
            r"Dataset|Entry|Bucket|Module|Command)(?:NotFound|Missing|"
            r"DoesNotExist)|(?:NotFound|Missing)(?:File|Path|Module|Config\w*))(?:Error|Exception)?$"
        ),
    ),
    (
        "compile",
        r"^\w*(?:Compil(?:e|ation|er)|Codegen|Lowering|Trac(?:e|ing)r?|Inductor|Nvrtc|Ptxas)(?:Error|Exception|Failed|Failure)$",
    ),
    (
        "data",
        (
            r"^\w*(?:Decod(?:e|ing|er)|Unidentified\w*|Corrupt\w*|BadZip\w*|BadGzip\w*|Parse|Parser|Truncated\w*|"
            r"DataLoss|MalformedData|InvalidData|DataFormat|EmptyData|Tokenization)(?:Error|Exception|File)?$"
        ),
    ),
    ("storage", r"^\w*(?:DiskFull|OutOfDisk|Quota\w*|StorageFull|NoSpace|MapFull)\w*$"),
    ("numeric", r"^\w*(?:NaN|Nan|NonFinite|Diverge\w*|FloatingPoint)(?:Error|Exception|Loss\w*)?$"),
)
"""What the name of an exception says, whichever library defines it."""

_PLACES: tuple[tuple[FailureClass, str], ...] = (
    (
        "config",
        (
            r"(?:^|/)(?:argparse|optparse|getopt|configparser|gettext)\.py|(?:^|/)(?:absl/flags|omegaconf|hydra|"
            r"jsonargparse|tyro|simple_parsing|draccus|fire|click|typer|pydantic(?:_core|_settings)?|dacite|marshmallow|"
            r"yacs|pkg_resources)/|transformers/(?:hf_argparser|training_args\w*|models/auto/\w+)\.py|"
            r"(?:mmengine|mmcv)/(?:config|registry|utils/(?:config|registry))|"
            r"torch/distributed/(?:elastic/rendezvous/|launcher/|launch|run\.py)"
        ),
    ),
    (
        "network",
        (
            r"(?:^|/)(?:requests|urllib3|httpx|httpcore|aiohttp|websockets?|paramiko|botocore|boto3|s3fs|gcsfs|adlfs|"
            r"google/(?:api_core|cloud|auth|resumable_media)|azure/(?:core|storage)|grpc|redis|pymongo|http|urllib)/|"
            r"(?:^|/)(?:socket|ssl|socketserver)\.py$"
        ),
    ),
    (
        "compile",
        (
            r"(?:^|/)(?:torch/(?:_inductor|utils/(?:cpp_extension|hipify))|triton/(?:compiler|backends|runtime/(?:build|"
            r"jit))|jax/_src/(?:interpreters/mlir|pallas)|jaxlib/mlir|tvm)\b"
        ),
    ),
    ("unknown", r"(?:^|/)multiprocessing/(?:connection|queues|managers|resource_sharer)\.py$"),
    (
        "data",
        (
            r"(?:^|/)(?:PIL|imageio|skimage/io|soundfile|librosa|torchaudio/(?:backend|io|_backend|_torchcodec)|"
            r"torchcodec|torchvision/io|decord|av|pyarrow|fastparquet|h5py|netCDF4|zarr|nibabel|pydicom|SimpleITK|"
            r"rasterio|pandas/io|pandas/_libs/parsers|csv|xml/etree|lxml|tarfile|zipfile|gzip|lzma|bz2|codecs)\b"
            r"(?:/|\.pyx?|$)"
        ),
    ),
)
"""Where an unspecific exception was raised: a library, by its innermost frame."""

_TELLERS = frozenset(
    (
        "ActorDiedError",
        "BaseExceptionGroup",
        "CellExecutionError",
        "CheckpointException",
        "DeadlockDetectedException",
        "ExceptionGroup",
        "InstantiationException",
        "KilledWorker",
        "LightningException",
        "PapermillExecutionError",
        "RayTaskError",
        "RemoteError",
        "RemoteTraceback",
        "RetryError",
        "TrainingFailedError",
        "WorkerError",
    )
)
"""Exceptions that only report another one."""

_OF_OTHERS = "torch/multiprocessing/spawn.py"
"""Where torch raises what has ended another process: the message is in the lines below."""

_OF_ENDED = (
    ("multiprocessing/spawn.py", frozenset(("EOFError", "UnpicklingError"))),
    (OF_PEERS, frozenset(("FileNotFoundError",))),
)
"""What a process raises that another one of its program, which has ended, has not handed over all or cannot be
connected to."""

_TELLING = re.compile(
    r"\(look up to see its traceback\)|exited unexpectedly|because \w[\w ]{0,30} rais\w+ an exception|"
    r"(?i:\bsee (?:the )?(?:stack ?trace|traceback|logs?|errors?|output)\b.{0,20}\babove\b)|"
    r"(?i:^(?:[\w-]+ ){1,4}(?:has |have )?(?:failed|died|crashed)(?: unexpectedly)?[.!]?(?: (?:see|check|look)\b.*)?$)|"
    r"(?i:^(?:an? )?(?:unhandled )?(?:exception|error|failure)s? (?:in|from|occurred in|was raised in) [\w. '-]+$)|"
    r"(?i:\brefers? to '[\w ]{0,20}error message')"
)
"""Messages that only report another exception."""

_LEADS_ON = re.compile(r"^$|[:;,]$|\berror\(?s\)? found\.?$|following|below")
"""How a message's first line ends where the content is in further ones."""

_HINTS: dict[FailureClass, str] = {
    "data": "A sample or file of the data set cannot be read; look at what the innermost frame was given.",
    "network": "A connection or remote service failed; look whether it answers from this machine.",
    "storage": "Look at space, quota and state of the file system that the message names.",
    "config": "A restart meets the same set-up: correct it and start again.",
    "compile": "A restart compiles the same: correct the code or the versions of the compilers.",
}


def as_kind(signature: Signature, raised: Raised) -> Signature:
    """Correct an unspecific answer by the exception's kind."""
    if any(raised.file.endswith(file) and raised.plain_name in names for file, names in _OF_ENDED):
        return _kind("tells", "unknown")
    if signature.id in _GENERAL:
        known = _by_message(signature, raised)
        if known is None and not _is_refused(raised):
            known = _by_surroundings(raised, None)
        return known or (_kind("tells", "unknown") if only_tells(raised) else signature)
    if signature.id == _CHECK:
        return as_checked(signature, raised.message)
    if (passing := _of_passing(signature, raised)) is not None:
        return passing
    if signature.id in _BY_A_SENTENCE and len(raised.message.split()) >= _SENTENCE_WORDS:
        signature = _by_message(signature, raised) or signature
    if signature.id in _OF_A_LIBRARY:
        return _by_surroundings(raised, "config") or signature
    return signature


def _of_passing(signature: Signature, raised: Raised) -> Signature | None:
    """Return the kind of what a data loader has caught, or of an assertion, if it may hold the next time."""
    if signature.id == "loader-caught" and (named := _by_name(raised.plain_name)) in _PASSING:
        return _kind("name", named)
    if signature.id == "py-assertion" and (asserted := _by_words(raised.message)) in _PASSING:
        return _kind("words", asserted)
    return None


def as_checked(signature: Signature, text: str) -> Signature:
    """Correct the answer for a line that reports a failed check by what its message says."""
    if signature.id != _CHECK:
        return signature
    said = text.partition(_CHECK_FAILED)[2]
    failure_class = _by_errno(said) or _by_words(said)
    return signature if failure_class in (None, "compile") else _kind("words", failure_class)


def only_tells(raised: Raised) -> bool:
    """Return whether an exception only reports another one."""
    is_of_others = raised.file.endswith(_OF_OTHERS) and not raised.message
    return is_of_others or raised.plain_name in _TELLERS or _TELLING.search(raised.message) is not None


def _by_message(signature: Signature, raised: Raised) -> Signature | None:
    if (failure_class := _by_errno(raised.message) or _by_status(raised.message)) is not None:
        return _kind("errno", failure_class)
    if (failure_class := _by_words(raised.message)) is not None:
        return _kind("words", failure_class)
    if signature.id == "python-exception" and (failure_class := _by_name(raised.plain_name)) is not None:
        return _kind("name", failure_class)
    return None


def _by_surroundings(raised: Raised, only: FailureClass | None) -> Signature | None:
    """Classify by the context: a library was imported, or one of a kind raised it; `only` of this class."""
    if raised.is_import:
        return _kind("import", "config")
    failure_class = None if raised.function == "__getattr__" else _by_place(raised.file)
    return (
        None if failure_class is None or only not in (None, failure_class) else _kind("place", failure_class)
    )


def _is_refused(raised: Raised) -> bool:
    """Return whether a library refuses what the program gave it: by its type, or a row that a CSV file cannot have."""
    return "got <class " in raised.message or "fields not in fieldnames" in raised.message


def says_little(signature: Signature) -> bool:
    """Return whether an answer says no more than that something failed."""
    return signature.id in _GENERAL


def leads_to_more(signature: Signature, message: str) -> bool:
    """Return whether an exception's message begins with a line that says little, or is a heading for further ones."""
    is_heading = signature.id.startswith("words-") and message.endswith(":")
    if signature.id.startswith("place-") and is_quoting(message):
        return True
    return is_heading or (says_little(signature) and _LEADS_ON.search(message) is not None)


def is_quoting(message: str) -> bool:
    """Return whether a message's first line ends where a quotation begins, as that of a query."""
    return message.endswith(" '")


def kind_said(text: str) -> Signature | None:
    """Return what a further line of a message says of the kind of failure."""
    failure_class = _by_errno(text) or _by_words(text)
    return None if failure_class is None else _kind("words", failure_class)


@cache
def _kind(name: str, failure_class: FailureClass) -> Signature:
    hint = _HINTS.get(failure_class, "")
    return Signature(id=f"{name}-{failure_class}", failure_class=failure_class, pattern="Error", hint=hint)


def _by_words(message: str) -> FailureClass | None:
    return said_of_exception(message)


def _by_errno(message: str) -> FailureClass | None:
    found = _ERRNO.search(message)
    if found is not None:
        number = next(int(group) for group in found.groups() if group is not None)
        if (known := _CLASS_OF_ERRNO.get(abs(number))) is not None:
            return known
    return first(_WORDS, message)


def _by_status(message: str) -> FailureClass | None:
    """Classify an HTTP status: the service failed, or it refuses the request."""
    found = _STATUS.search(message)
    if found is None:
        return None
    status = int(next(filter(None, found.groups())))
    return "network" if status >= 500 or status in _PASSING_STATUS else "config"


def _by_name(name: str) -> FailureClass | None:
    return first(_NAMES, name)


def _by_place(file: str) -> FailureClass | None:
    return first(_PLACES, file) if is_library(file) else None
