"""Prefect blocks: infrastructure saved under a name, for jobs, as a parameter, or for use by itself."""

from prefect_ft.blocks.lookup import infrastructure_of_block
from prefect_ft.blocks.training import DockerTraining, KubernetesTraining, ProcessTraining, SlurmTraining

__all__ = [
    "DockerTraining",
    "KubernetesTraining",
    "ProcessTraining",
    "SlurmTraining",
    "infrastructure_of_block",
]
