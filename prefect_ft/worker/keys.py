"""Keys by which an agent authenticates its orchestrator. The orchestrator derives them; an agent gets a verifier only.

So an agent's data does not give access to that agent or any other: that takes the run's key.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import List, Sequence

SHARED_KEY_DIGITS = 32
"""Length of the keys of earlier versions' runs, whose agents all know the run's key itself."""


def worker_key(run_key: str, worker: str) -> str:
    """Return the key of one worker of a run; `worker` is the name of its directory, which no other worker has."""
    if len(run_key) <= SHARED_KEY_DIGITS:
        return run_key
    return hmac.new(run_key.encode(), f"worker {worker}".encode(), hashlib.sha256).hexdigest()


def verifier_of(key: str) -> str:
    """Return what identifies a key without revealing it: its SHA-256 in hexadecimal digits.

    That is enough for random keys; a guessable word would need a slower function.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


def verifiers_of(run_key: str, worker: str) -> List[str]:
    """Return an agent's verifiers: of its own key, and of the run's, which earlier orchestrators present."""
    return sorted({verifier_of(key) for key in (worker_key(run_key, worker), run_key)})


def fits(key: str, verifiers: Sequence[str]) -> bool:
    """Return whether this is the key of one of the verifiers."""
    own = verifier_of(key)
    return any(hmac.compare_digest(own, each) for each in verifiers)
