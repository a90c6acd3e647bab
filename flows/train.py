"""What deployments point at: train-flow, as the package gives it."""

from prefect_ft import train_flow

__all__ = ["train_flow"]
