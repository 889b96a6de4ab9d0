"""Berth workspaces as sandboxes of Airflow's SandboxToolset."""

from berth_airflow.backend import BerthSandboxBackend
from berth_airflow.client import BerthError, Client, LostError, UnreachableError

__all__ = ["BerthError", "BerthSandboxBackend", "Client", "LostError", "UnreachableError"]
