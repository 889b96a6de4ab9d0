"""The shapes of Airflow's sandbox contract, as its provider common.ai 1.1 has them (sandbox/base.py): what
is used where Airflow is not installed, and what types are checked against."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, List, Mapping, Optional, Sequence, Tuple

OWNER_TAG = "airflow_owner"
HOLDER_TAG = "airflow_holder"
EXPIRES_AT_TAG = "airflow_expires_at"
NETWORK_TAG = "airflow_network"
WORKDIR_TAG = "airflow_workdir"


class SandboxError(Exception):
    """The model may be able to work around it, and is told."""


class SandboxTerminalError(SandboxError):
    """Nothing the model does helps: the task fails."""


class SandboxFileTooLargeError(SandboxError):
    """A file was larger than it may be, and was not transferred."""

    def __init__(self, path: str, size_bytes: int, max_bytes: int) -> None:
        self.path = path
        self.size_bytes = size_bytes
        self.max_bytes = max_bytes
        super().__init__(f"{path!r} has {size_bytes} bytes; at most {max_bytes} are read")


@dataclass(frozen=True)
class SandboxSpec:
    """What a sandbox is made with. What cannot be enforced is refused."""

    env: Optional[Mapping[str, str]] = None
    block_network: bool = True
    allow_egress_to: Optional[Sequence[str]] = None
    allow_egress_to_cidrs: Optional[Sequence[str]] = None
    owner: Optional[str] = None


@dataclass(frozen=True)
class SandboxExecResult:
    """How a command ended. The limit on output is for each stream."""

    exit_code: int
    stdout: str
    stderr: str
    timed_out: bool = False
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    sandbox_terminated: bool = False
    applied_timeout: Optional[float] = None


@dataclass(frozen=True)
class AttachedSandbox:
    """What its maker wrote down of a sandbox; None where nothing."""

    remaining_lifetime: Optional[float]
    network: Optional[SandboxSpec]
    workdir: Optional[str]


def encode_network_policy(spec: SandboxSpec) -> str:
    """A spec's network as the value of NETWORK_TAG."""
    return json.dumps({
        "block_network": spec.block_network,
        "allow_egress_to": list(spec.allow_egress_to or ()),
        "allow_egress_to_cidrs": list(spec.allow_egress_to_cidrs or ()),
    }, separators=(",", ":"), sort_keys=True)


def decode_network_policy(value: Optional[str]) -> Optional[SandboxSpec]:
    """A spec that has the network alone; None for what is no such value."""
    try:
        document = json.loads(value or "")
        return SandboxSpec(
            block_network=bool(document["block_network"]),
            allow_egress_to=[str(host) for host in document["allow_egress_to"]] or None,
            allow_egress_to_cidrs=[str(block) for block in document["allow_egress_to_cidrs"]] or None)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


class SandboxBackend(ABC):
    """create, then any number of operations, then destroy."""

    name: ClassVar[str]

    @abstractmethod
    def create(self, *, spec: Optional[SandboxSpec] = None) -> str:
        ...

    @abstractmethod
    def run_command(self, sandbox: str, command: str, *, timeout: float,
                    max_output_bytes: int) -> SandboxExecResult:
        ...

    @abstractmethod
    def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes:
        ...

    @abstractmethod
    def write_file(self, sandbox: str, path: str, content: bytes) -> None:
        ...

    @abstractmethod
    def list_directory(self, sandbox: str, path: str) -> List[Tuple[str, bool]]:
        ...

    @abstractmethod
    def destroy(self, sandbox: str) -> None:
        ...


class AttachableSandboxBackend(SandboxBackend):
    """One whose sandboxes are found again by other processes."""

    @abstractmethod
    def read_tags(self, sandbox: str) -> Mapping[str, str]:
        ...

    @abstractmethod
    def write_tags(self, sandbox: str, tags: Mapping[str, str]) -> None:
        ...

    @abstractmethod
    def attach(self, sandbox: str, *, owner: str, holder: str) -> AttachedSandbox:
        ...

    @abstractmethod
    def release(self, sandbox: str, *, holder: str) -> None:
        ...

    @staticmethod
    def _remaining(expires_at: Optional[str]) -> Optional[float]:
        try:
            return None if expires_at is None else max(0.0, float(expires_at) - time.time())
        except ValueError:
            return None
