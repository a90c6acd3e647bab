"""The manifests of a phase's workers: each one's secret, with its agent's configuration, and its pod."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from prefect_ft.backends.base import AgentSettings, Worker
from prefect_ft.backends.direct import addresses_of
from prefect_ft.backends.home import agent_config
from prefect_ft.backends.kubernetes.config import KubernetesInfrastructure
from prefect_ft.backends.kubernetes.names import PhaseNames
from prefect_ft.backends.kubernetes.request import pod, secret

LAST_WORDS_S = 3.0
"""How much of a pod's remaining time an agent may take to end its ranks."""


class Manifests:
    """Builds them. Sends nothing."""

    def __init__(
        self,
        settings: AgentSettings,
        infrastructure: KubernetesInfrastructure,
        names: PhaseNames,
        files: Mapping[str, Path],
        api_url: str,
    ) -> None:
        """`files` of this machine are given to each worker, by their paths there; agents watch the API at `api_url`."""
        assert settings.certificates is not None
        self._settings, self._certificates = settings, settings.certificates
        self._infrastructure = infrastructure
        self._systems = {system.name: system for system in infrastructure.systems}
        self._names, self._files, self._api_url = names, files, api_url

    def of(self, worker: Worker, code: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return a worker's secret and its pod; `code` names the config map of the agent's code."""
        name, labels = self._names.pod(worker), self._names.labels(worker)
        files = {target: path.read_bytes() for target, path in self._files.items()}
        system = self._systems[worker.system]
        return (
            secret(name, labels, json.dumps(self._agent_config(worker)), files),
            pod(self._infrastructure, system, name, labels, code=code, files=files),
        )

    def _agent_config(self, worker: Worker) -> dict[str, Any]:
        """Return an agent's configuration; ranks may save after an eviction for as long as they can still be ended."""
        notice_s = max(1.0, self._infrastructure.termination_grace_s - LAST_WORDS_S)
        home, network = self._names.home(worker), self._network(worker)
        return agent_config(home, self._settings, worker, network=network, notice_s=notice_s)

    def _network(self, worker: Worker) -> dict[str, Any]:
        """Return the network part of an agent's configuration: how it listens, and what it watches."""
        given, identity = self._infrastructure, self._certificates.worker(self._names.place(worker))
        return {
            "port": given.agent_port,
            "identity": {"own": identity.own, "trusts": identity.trusts},
            "silence_timeout_s": given.silence_timeout_s,
            "partition_timeout_s": given.partition_timeout_s,
            "api": addresses_of(self._api_url),
        }
