"""Heartbeats and skipped steps where the loop is not the script's own: callbacks for frameworks, hooks, a loader.

Importing this package imports no framework: a class is loaded on first use, and only those for frameworks that
call back what they know (Hugging Face's Trainer, Lightning) need theirs. All do nothing, at next to no cost,
where no agent listens. Owns no file: `prefect_ft.heartbeat` does.
"""

TYPE_CHECKING = False  # typing's own would cost its import
if TYPE_CHECKING:
    from prefect_ft.callbacks.huggingface import HuggingFaceHeartbeat as HuggingFaceHeartbeat
    from prefect_ft.callbacks.huggingface import HuggingFaceSkipping as HuggingFaceSkipping
    from prefect_ft.callbacks.lightning import LightningHeartbeat as LightningHeartbeat
    from prefect_ft.callbacks.lightning import LightningSkipping as LightningSkipping
    from prefect_ft.callbacks.loops import AccelerateHeartbeat as AccelerateHeartbeat
    from prefect_ft.callbacks.loops import TorchHeartbeat as TorchHeartbeat
    from prefect_ft.callbacks.skipping import SkippingLoader as SkippingLoader

_HOME = {
    "AccelerateHeartbeat": "loops",
    "HuggingFaceHeartbeat": "huggingface",
    "HuggingFaceSkipping": "huggingface",
    "LightningHeartbeat": "lightning",
    "LightningSkipping": "lightning",
    "SkippingLoader": "skipping",
    "TorchHeartbeat": "loops",
}
__all__ = sorted(_HOME)  # noqa: PLE0605  (it is a list of strings; the table above is its one source)


def __getattr__(name: str) -> object:
    """Load a class on first use (PEP 562); raises ModuleNotFoundError where its framework is not installed."""
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415  (as above)

    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """Public names, loaded or not."""
    return __all__
