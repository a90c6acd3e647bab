"""The keys of an iteration as a store of torch.distributed. Imports torch, which must be there."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, List, Optional

import torch.distributed as dist

from prefect_ft.inprocess.client import Store


class _TorchStore(dist.Store):  # type: ignore[misc]  # torch may not be there when types are checked
    """Sends bytes as text, each as the character of its number."""

    def __init__(self, store: Store) -> None:
        super().__init__()
        self._store = store

    def set(self, key: str, value: Any) -> None:
        data = value.encode() if isinstance(value, str) else bytes(value)
        self._store.set(key, data.decode("latin-1"))

    def get(self, key: str) -> bytes:
        return self._store.get(key).encode("latin-1")

    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount)

    def wait(self, keys: List[str], timeout: Optional[timedelta] = None) -> None:
        self._store.wait(keys, None if timeout is None else timeout.total_seconds())

    def check(self, keys: List[str]) -> bool:
        return self._store.count(keys) == len(keys)

    def compare_set(self, key: str, expected: Any, desired: Any) -> bytes:
        texts = [
            (value.encode() if isinstance(value, str) else bytes(value)).decode("latin-1")
            for value in (expected, desired)
        ]
        return self._store.swap(key, *texts).encode("latin-1")

    def delete_key(self, key: str) -> bool:
        return self._store.delete(key)

    def set_timeout(self, timeout: timedelta) -> None:
        self._store.timeout_s = timeout.total_seconds()


def torch_store(store: Store) -> dist.Store:
    """Return the store for torch.distributed."""
    return _TorchStore(store)
