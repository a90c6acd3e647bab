"""Prefect blocks: infrastructure that is saved under a name, for jobs, as a parameter, or to be used by itself."""

from prefect_ft.blocks.lookup import infrastructure_of_block
from prefect_ft.blocks.training import DockerTraining, ProcessTraining

__all__ = ["DockerTraining", "ProcessTraining", "infrastructure_of_block"]
