"""Notes what a rank imports, until that is known: Python runs this before the rank's program.

It is on the path of one rank of one attempt. It removes itself at once, so that no process that the rank
starts loads it, and runs the sitecustomize that it hides.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))
_VARIABLE = "PREFECT_FT_IMPORTS"


class _Notes:
    """A finder that finds nothing and writes down what is being imported, each name once.

    Libraries look for dozens of packages that they may not need (`importlib.util.find_spec`), some at every step;
    others try at every step to import one that is missing.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._pid = os.getpid()
        self._noted: "set[str]" = set()
        self._being_imported = getattr(sys.modules["_frozen_importlib"], "_module_locks", None)

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002  # Python's
        if self._being_imported is not None and name not in self._being_imported:
            return  # the caller only asks whether the module exists
        if name not in self._noted and os.getpid() == self._pid:
            self._noted.add(name)
            try:
                fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(fd, name.encode("utf-8", "replace") + b"\n")
                finally:
                    os.close(fd)
            except OSError:  # a full disk: the module is imported all the same
                return


def _remove_itself() -> "str | None":
    """Remove this directory and the variable from the rank's environment; return where to write."""
    sys.path[:] = [entry for entry in sys.path if entry != _HERE]
    rest = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry != _HERE]
    if any(rest):
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    else:
        os.environ.pop("PYTHONPATH", None)
    return os.environ.pop(_VARIABLE, None)


_place = _remove_itself()
_own = sys.modules.pop(__name__)
try:
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401  # that it runs is all
except ImportError as exc:
    if exc.name != __name__:
        raise
finally:
    sys.modules.setdefault(__name__, _own)
if _place:
    sys.meta_path.insert(0, _Notes(_place))
