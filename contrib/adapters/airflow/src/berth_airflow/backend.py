"""Berth workspaces as sandboxes of Airflow's SandboxToolset."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, NoReturn, Optional, Tuple

from berth_airflow import policy as policies
from berth_airflow.client import BerthError, Client, LostError, UnreachableError
from berth_airflow.commands import WORKDIR, Outcome, run
from berth_airflow.contract import (
    EXPIRES_AT_TAG, HOLDER_TAG, NETWORK_TAG, OWNER_TAG, WORKDIR_TAG, AttachableSandboxBackend,
    AttachedSandbox, SandboxError, SandboxExecResult, SandboxSpec, SandboxTerminalError,
    decode_network_policy, encode_network_policy)
from berth_airflow.files import Files
from berth_airflow.transport import Address, ConfigurationError, from_environment

log = logging.getLogger(__name__)

ENVIRONMENT_LABEL = "berth.airflow.env"
CREATED_BY, CREATED_AT = "created-by", "created-at"
# Not tags: whoever writes tags leaves them as they are.
OWN_LABELS = frozenset({ENVIRONMENT_LABEL, CREATED_BY, CREATED_AT})
# One word of an execve, with its NUL (MAX_ARG_STRLEN).
COMMAND_MAX = (128 << 10) - 1
# Two that claim at once: one of them wins each time.
CLAIM_TRIES = 10
DEFAULT_LIFETIME = 3600.0


class _Conflict(SandboxError):
    """The tags are others by now."""


@dataclass
class _Known:
    """What this process knows of a sandbox."""

    environment: Mapping[str, str]
    asked: Mapping[str, Any]


class BerthSandboxBackend(AttachableSandboxBackend):
    """Sandboxes that are workspaces of a Berth service: a directory each, which people can mount meanwhile, with
    commands confined to it.

    :param url: unix:PATH, https://HOST:PORT, http://LOOPBACK:PORT or exec:COMMAND, as `berth --url` has it. Without one
        (and without a connection) BERTH_URL and the other variables of berth(1) say, on the worker, at first use.
    :param token, token_file, ca_file, cert_file, key_file: what is shown to the service, as berth(1) has it.
    :param berth_conn_id: an Airflow connection: its host is the URL, its password the token, and its extra may
        have ca_file, cert_file, key_file. It cannot name a command (exec:): who may edit connections shall not
        thereby run programs on workers.
    :param sandbox_timeout: seconds after which the service removes a sandbox by itself, when nothing uses it
        then; None: never.
    :param policy: what berth-policy(5) has beside the network: limits, require, filesystem.
    :param tags: further labels.
    :param cidrs_by_proxy: allow_egress_to_cidrs is accepted, although by TCP and the proxy alone.
    :param open_network: what block_network=False gives: "proxy", every host of the public internet by the proxy;
        "host", the network of the service's machine as it is.
    :param check_policy: the policy is read before and after each command, and must be what it was.
    """

    name = "berth"

    def __init__(
        self, url: Optional[str] = None, *, token: Optional[str] = None, token_file: Optional[str] = None,
        ca_file: Optional[str] = None, cert_file: Optional[str] = None, key_file: Optional[str] = None,
        berth_conn_id: Optional[str] = None, sandbox_timeout: Optional[float] = DEFAULT_LIFETIME,
        policy: Optional[Mapping[str, Any]] = None, tags: Optional[Mapping[str, str]] = None,
        cidrs_by_proxy: bool = False, open_network: str = "proxy", check_policy: bool = True,
    ) -> None:
        if url is not None and berth_conn_id is not None:
            raise ValueError("a url and a connection are two services; give one")
        if open_network not in ("proxy", "host"):
            raise ValueError(f"open_network is 'proxy' or 'host', not {open_network!r}")
        if sandbox_timeout is not None:
            _positive(sandbox_timeout, "sandbox_timeout")
        if policy and "network" in policy:
            raise ValueError("the network of a sandbox is its spec's")
        for tag in tags or ():
            if tag in OWN_LABELS or tag.startswith("airflow_"):
                raise ValueError(f"the tag {tag!r} is the backend's own")
        self._address: Optional[Address] = None
        if url is not None:
            self._address = Address(url, token, token_file, ca_file, cert_file, key_file)
        self._connection_id = berth_conn_id
        self._lifetime = sandbox_timeout
        self._policy = dict(policy or {})
        self._tags = dict(tags or {})
        self._cidrs_by_proxy = cidrs_by_proxy
        self._open_network = open_network
        self._check_policy = check_policy
        self._start()

    def _start(self) -> None:
        self._lock = threading.Lock()
        self._client: Optional[Client] = None
        self._known: Dict[str, _Known] = {}
        self._revisions = threading.local()

    def __getstate__(self) -> Dict[str, Any]:
        state = self.__dict__.copy()
        for name in ("_lock", "_client", "_known", "_revisions"):
            del state[name]
        return state

    def __setstate__(self, state: Dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._start()

    # --- the service ---

    def _service(self) -> Client:
        with self._lock:
            if self._client is None:
                try:
                    self._client = Client(self._address or self._find_address())
                except (ConfigurationError, OSError) as error:
                    raise SandboxTerminalError(f"the Berth service: {error}") from error
            return self._client

    def close(self) -> None:
        """Ends connections that nobody uses. The backend may be used again."""
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            client.close()

    def _find_address(self) -> Address:
        if self._connection_id is None:
            return from_environment(os.environ)
        try:
            from airflow.providers.common.compat.sdk import BaseHook  # type: ignore[import]
        except ImportError as error:
            raise SandboxTerminalError("a connection's ID needs Airflow") from error
        try:
            connection = BaseHook.get_connection(self._connection_id)
        except Exception as error:
            raise SandboxTerminalError(f"the connection {self._connection_id!r}: {error}") from error
        url = str(connection.host or "")
        if url.startswith("exec:"):
            raise SandboxTerminalError("a connection cannot name a command; give the backend its url")
        extra = connection.extra_dejson
        return Address(url, token=connection.password or None, ca_file=extra.get("ca_file"),
                       cert_file=extra.get("cert_file"), key_file=extra.get("key_file"))

    @contextmanager
    def _told(self, sandbox: str, doing: str) -> Iterator[None]:
        """Failures of the service as failures of the contract."""
        try:
            yield
        except BerthError as error:
            self._raise(error, sandbox, doing)
        except ConfigurationError as error:
            raise SandboxTerminalError(f"{doing}: {error}") from error

    def _raise(self, error: BerthError, sandbox: str, doing: str) -> NoReturn:
        text = f"{doing}: {error.detail}"
        if isinstance(error, UnreachableError):
            raise SandboxTerminalError(text) from error
        if isinstance(error, LostError):
            raise self._unknown(error, sandbox, text) from error
        if error.status in (401, 403, 429) or error.errno in ("ESHUTDOWN", "EPERM"):
            raise SandboxTerminalError(text) from error
        if error.status == 404 and self._is_gone(sandbox):
            raise SandboxTerminalError(f"{doing}: the sandbox {sandbox!r} is gone") from error
        raise SandboxError(text) from error

    def _unknown(self, error: LostError, sandbox: str, text: str) -> SandboxError:
        """Never a success, and never "not run". Where the sandbox is still there the model can look."""
        try:
            self._service().workspace(sandbox)
        except BerthError:
            return SandboxTerminalError(f"{text}. The sandbox is not reached any more.")
        return SandboxError(f"{text}. It may have happened or not: look at the sandbox's files before it is done "
                            "again.")

    def _is_gone(self, sandbox: str) -> bool:
        try:
            self._service().workspace(sandbox)
        except BerthError as error:
            return error.status == 404
        return False

    # --- life ---

    def create(self, *, spec: Optional[SandboxSpec] = None) -> str:
        network, environment = None, {}
        if spec is not None:
            network = policies.network_of(spec, cidrs_by_proxy=self._cidrs_by_proxy, open_network=self._open_network)
            environment = policies.environment_of(spec, network)
        sandbox = f"airflow-sandbox-{uuid.uuid4().hex[:12]}"
        fields: Dict[str, Any] = {"labels": self._labels_of(spec, environment)}
        if self._lifetime is not None:
            fields["ttl"] = self._lifetime
        if network is not None or self._policy:
            fields["policy"] = {**self._policy, **({} if network is None else {"network": network})}
        client = self._service()
        made = True  # as far as is known
        try:
            with self._told(sandbox, "a sandbox could not be made"):
                try:
                    client.create(sandbox, **fields)
                except (BerthError, ConfigurationError) as error:
                    made = isinstance(error, BerthError) and error.effect != "none"
                    raise
                document = client.policy(sandbox)
            trouble = None
            if network is not None:
                trouble = policies.holds(document, network)
            elif self._policy:
                trouble = policies.difference(document, document["asked"])
            if trouble is not None:
                raise SandboxTerminalError(f"the sandbox was not held as its spec asks ({trouble}), and was removed")
        except SandboxError as error:
            if made:
                self._discard(sandbox)
            if isinstance(error, SandboxTerminalError):
                raise
            raise SandboxTerminalError(str(error)) from error  # the model has no part in it
        except BaseException:
            self._discard(sandbox)
            raise
        self._remember(sandbox, environment, document["asked"])
        return sandbox

    def _labels_of(self, spec: Optional[SandboxSpec], environment: Mapping[str, str]) -> Dict[str, str]:
        now = time.time()
        labels = {**self._tags, CREATED_BY: "airflow", CREATED_AT: str(int(now)), WORKDIR_TAG: WORKDIR}
        if self._lifetime is not None:
            labels[EXPIRES_AT_TAG] = str(int(now + self._lifetime))
        if spec is not None:
            labels[NETWORK_TAG] = encode_network_policy(spec)
            if spec.owner is not None:
                labels[OWNER_TAG] = spec.owner
        if environment:
            labels[ENVIRONMENT_LABEL] = json.dumps(environment)
        return labels

    def _discard(self, sandbox: str) -> None:
        try:
            self._service().destroy(sandbox)
        except (BerthError, SandboxError) as error:
            log.warning("the sandbox %s may be left at the service, with the label %s=airflow: %s", sandbox,
                        CREATED_BY, error)

    def destroy(self, sandbox: str) -> None:
        with self._told(sandbox, f"the sandbox {sandbox!r} could not be removed"):
            self._service().destroy(sandbox)
        with self._lock:
            self._known.pop(sandbox, None)

    def _remember(self, sandbox: str, environment: Mapping[str, str], asked: Mapping[str, Any]) -> _Known:
        with self._lock:
            return self._known.setdefault(sandbox, _Known(dict(environment), asked))

    def _knowledge(self, sandbox: str) -> _Known:
        """Of a sandbox that another process has made: what its labels say, and its policy as it is now, which must be
        what they say."""
        with self._lock:
            known = self._known.get(sandbox)
        if known is not None:
            return known
        client = self._service()
        labels = client.workspace(sandbox)["labels"]
        document = client.policy(sandbox)
        spec = decode_network_policy(labels.get(NETWORK_TAG))
        if spec is not None:
            network = policies.network_of(spec, cidrs_by_proxy=True, open_network=self._open_network)
            trouble = policies.holds(document, network)
            if trouble is not None:
                raise SandboxTerminalError(f"the sandbox {sandbox!r} is not held as it was made: {trouble}")
        try:
            environment = json.loads(labels.get(ENVIRONMENT_LABEL, "{}"))
        except (ValueError, RecursionError):
            environment = None
        if not isinstance(environment, dict):
            raise SandboxTerminalError(f"the sandbox {sandbox!r} has an environment that is none")
        return self._remember(sandbox, environment, document["asked"])

    def _verify(self, sandbox: str, known: _Known) -> None:
        """Whoever administers the service can change a policy at any time."""
        if not self._check_policy:
            return
        trouble = policies.difference(self._service().policy(sandbox), known.asked)
        if trouble is not None:
            self._discard(sandbox)
            raise SandboxTerminalError(f"the policy of the sandbox {sandbox!r} is not what it was ({trouble}), so it was "
                                       "removed; commands that ran before may have used that")

    # --- commands ---

    def run_command(self, sandbox: str, command: str, *, timeout: float,
                    max_output_bytes: int) -> SandboxExecResult:
        _positive(timeout, "timeout")
        _positive(max_output_bytes, "max_output_bytes")
        if "\0" in command:
            raise SandboxError("the command has a NUL in it")
        try:
            size = len(command.encode())
        except UnicodeEncodeError:
            raise SandboxError("the command is no UTF-8") from None
        if size > COMMAND_MAX:
            raise SandboxError(f"the command has {size} bytes; at most {COMMAND_MAX} are possible. Write it to a file, "
                               "and run that.")
        with self._told(sandbox, "the command"):
            known = self._knowledge(sandbox)
            self._verify(sandbox, known)
            outcome = run(self._service(), sandbox, ["/bin/sh", "-c", command], timeout=timeout,
                          output_max=int(max_output_bytes), env=known.environment)
            if outcome.kind == "not_started":
                _refuse(outcome)
            self._verify(sandbox, known)
            return self._result(sandbox, outcome, timeout)

    def _result(self, sandbox: str, outcome: Outcome, timeout: float) -> SandboxExecResult:
        verdict = outcome.verdict
        notes = []
        if outcome.kind in ("oom_killed", "killed"):
            notes.append(f"[{outcome.kind.replace('_', ' ')}: {verdict.get('text') or 'by the service'}]")
        # What the service says of commands that it ends for that (keeper/clear.c), a moment before it is gone.
        removed = verdict.get("text") == "because its workspace is removed"
        terminated = outcome.kind == "killed" and (removed or self._is_gone(sandbox))
        if verdict.get("left"):
            # It cannot be ended otherwise.
            notes.append(f"[{verdict['left']} of its processes could not be ended, so the sandbox was removed]")
            self._discard(sandbox)
            terminated = True
        applied = verdict.get("timeout_ms")
        stderr = _text(outcome.stderr, outcome.truncated("stderr"))
        if notes and stderr and not stderr.endswith("\n"):
            stderr += "\n"
        return SandboxExecResult(
            exit_code=outcome.exit_status, stdout=_text(outcome.stdout, outcome.truncated("stdout")),
            stderr=stderr + "\n".join(notes), timed_out=outcome.kind == "timed_out",
            stdout_truncated=outcome.truncated("stdout"), stderr_truncated=outcome.truncated("stderr"),
            sandbox_terminated=terminated,
            applied_timeout=applied / 1000 if isinstance(applied, int) and applied < 1 << 53 and abs(applied / 1000 - timeout) > 1e-3 else None)

    # --- files ---

    def read_file(self, sandbox: str, path: str, *, max_bytes: int) -> bytes:
        _positive(max_bytes, "max_bytes")
        with self._told(sandbox, f"{_shown(path)} could not be read"):
            return Files(self._service()).read(sandbox, path, int(max_bytes))

    def write_file(self, sandbox: str, path: str, content: bytes) -> None:
        with self._told(sandbox, f"{_shown(path)} could not be written"):
            Files(self._service()).write(sandbox, path, content)

    def list_directory(self, sandbox: str, path: str) -> List[Tuple[str, bool]]:
        with self._told(sandbox, f"{_shown(path)} could not be listed"):
            return Files(self._service()).list(sandbox, path)

    # --- tags ---

    def read_tags(self, sandbox: str) -> Mapping[str, str]:
        """Also remembers, for this thread's next write_tags, which revision they are of."""
        try:
            with self._told(sandbox, f"the tags of {sandbox!r} could not be read"):
                document = self._service().workspace(sandbox)
        except SandboxError as error:
            if isinstance(error, SandboxTerminalError) or not self._is_gone(sandbox):
                raise
            raise SandboxTerminalError(str(error)) from error
        if document.get("state") != "running":
            raise SandboxTerminalError(f"the sandbox {sandbox!r} is {document.get('state')}")
        labels: Dict[str, str] = document["labels"]
        self._noted()[sandbox] = (f'"{document.get("revision")}"', {key: value for key, value in labels.items()
                                                                  if key in OWN_LABELS})
        return {key: value for key, value in labels.items() if key not in OWN_LABELS}

    def write_tags(self, sandbox: str, tags: Mapping[str, str]) -> None:
        """In place of those that this thread has read last, if nobody has changed them since."""
        if sandbox not in self._noted():
            self.read_tags(sandbox)
        revision, own = self._noted().pop(sandbox)
        try:
            with self._told(sandbox, f"the tags of {sandbox!r} could not be written"):
                self._service().replace_labels(sandbox, {**tags, **own}, revision)
        except SandboxError as error:
            cause = error.__cause__
            if isinstance(cause, BerthError) and cause.status == 412:
                raise _Conflict(f"the tags of {sandbox!r} were changed by somebody else meanwhile") from cause
            if isinstance(cause, LostError) and dict(self.read_tags(sandbox)) == dict(tags):
                return
            raise

    def _noted(self) -> Dict[str, Tuple[str, Dict[str, str]]]:
        noted: Dict[str, Tuple[str, Dict[str, str]]] = self._revisions.__dict__.setdefault("noted", {})
        return noted

    def attach(self, sandbox: str, *, owner: str, holder: str) -> AttachedSandbox:
        """Of two that claim a sandbox at once one gets it, which tags that are written on top of one another could not
        promise."""
        for _ in range(CLAIM_TRIES):
            tags = self.read_tags(sandbox)
            if tags.get(OWNER_TAG) != owner:
                raise SandboxTerminalError(
                    f"the sandbox {sandbox!r} is not {owner!r}'s: its owner is {tags.get(OWNER_TAG)!r}. Make it with "
                    "SandboxSpec(owner=dag_run_owner(context)) in the same run, or name the owner it was made for.")
            held_by = tags.get(HOLDER_TAG)
            if held_by and held_by != holder:
                raise SandboxTerminalError(f"the sandbox {sandbox!r} is held by {held_by!r}; one at a time uses it")
            if held_by != holder:
                try:
                    self.write_tags(sandbox, {**tags, HOLDER_TAG: holder})
                except _Conflict:
                    continue
            with self._told(sandbox, f"the sandbox {sandbox!r}"):
                self._knowledge(sandbox)
            return AttachedSandbox(remaining_lifetime=self._remaining(tags.get(EXPIRES_AT_TAG)),
                                   network=decode_network_policy(tags.get(NETWORK_TAG)),
                                   workdir=tags.get(WORKDIR_TAG) or None)
        raise SandboxTerminalError(f"the tags of the sandbox {sandbox!r} do not stand still")

    def release(self, sandbox: str, *, holder: str) -> None:
        for _ in range(CLAIM_TRIES):
            tags = dict(self.read_tags(sandbox))
            if tags.get(HOLDER_TAG) != holder:
                return
            del tags[HOLDER_TAG]
            with suppress(_Conflict):
                self.write_tags(sandbox, tags)
                return
        raise SandboxError(f"the tags of the sandbox {sandbox!r} do not stand still")


def _positive(value: float, name: str) -> None:
    if not math.isfinite(value) or value <= 0:
        raise ValueError(f"{name} is a positive number, not {value!r}")


def _shown(path: str) -> str:
    return repr(path if len(path) <= 200 else path[:200] + "…")


def _text(data: bytes, cut: bool) -> str:
    """What was cut may begin in the middle of a character."""
    start = 0
    while cut and start < min(3, len(data)) and data[start] & 0xC0 == 0x80:
        start += 1
    return data[start:].decode("utf-8", "replace")


def _refuse(outcome: Outcome) -> NoReturn:
    """A command that was not started, for a reason of the service's or of the sandbox's."""
    stage = str(outcome.verdict.get("stage"))
    text = f"the command was not started, at the step {stage}: {outcome.verdict.get('text') or outcome.verdict.get('errno')}"
    if stage in ("confine", "attest", "execve", "workspace"):
        raise SandboxTerminalError(text)
    raise SandboxError(text)
