"""The contract of a sandbox backend: Airflow's own classes where its provider common.ai is installed, else
classes of the same names and shapes, so that the backend can be used and tested without Airflow."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from berth_airflow.mirror import (
        EXPIRES_AT_TAG, HOLDER_TAG, NETWORK_TAG, OWNER_TAG, WORKDIR_TAG, AttachableSandboxBackend,
        AttachedSandbox, SandboxBackend, SandboxError, SandboxExecResult, SandboxFileTooLargeError,
        SandboxSpec, SandboxTerminalError, decode_network_policy, encode_network_policy)
else:
    try:
        from airflow.providers.common.ai.sandbox.base import (
            EXPIRES_AT_TAG, HOLDER_TAG, NETWORK_TAG, OWNER_TAG, WORKDIR_TAG, AttachableSandboxBackend,
            AttachedSandbox, SandboxBackend, SandboxError, SandboxExecResult, SandboxFileTooLargeError,
            SandboxSpec, SandboxTerminalError, decode_network_policy, encode_network_policy)
    except ImportError:
        from berth_airflow.mirror import (
            EXPIRES_AT_TAG, HOLDER_TAG, NETWORK_TAG, OWNER_TAG, WORKDIR_TAG, AttachableSandboxBackend,
            AttachedSandbox, SandboxBackend, SandboxError, SandboxExecResult, SandboxFileTooLargeError,
            SandboxSpec, SandboxTerminalError, decode_network_policy, encode_network_policy)

__all__ = [
    "EXPIRES_AT_TAG", "HOLDER_TAG", "NETWORK_TAG", "OWNER_TAG", "WORKDIR_TAG",
    "AttachableSandboxBackend", "AttachedSandbox", "SandboxBackend", "SandboxError",
    "SandboxExecResult", "SandboxFileTooLargeError", "SandboxSpec", "SandboxTerminalError",
    "decode_network_policy", "encode_network_policy",
]
