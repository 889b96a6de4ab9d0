"""A sandbox spec's network as a policy of Berth's (berth-policy(5)), and whether it holds. What cannot be
enforced as it was asked is refused."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any, Dict, List, Mapping, Optional, Sequence

from berth_airflow.contract import SandboxSpec, SandboxTerminalError

# An allow list's bound in the service.
ENTRIES_MAX = 256
# The service keeps an environment with the workspace's labels, of which it takes 16 KiB in all.
ENVIRONMENT_MAX = 12 << 10
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
HOST_LABEL = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)\Z")
# What the service itself sets where there is a list of hosts: other values would lead nowhere.
PROXY_VARIABLES = {"http_proxy", "https_proxy", "all_proxy", "no_proxy"}


def network_of(spec: SandboxSpec, *, cidrs_by_proxy: bool, open_network: str) -> Any:
    """The policy's `network`; SandboxTerminalError for what cannot be enforced."""
    hosts = _hosts(spec.allow_egress_to)
    blocks = _blocks(spec.allow_egress_to_cidrs)
    if not spec.block_network:
        if hosts or blocks:
            raise SandboxTerminalError(
                "allow_egress_to and allow_egress_to_cidrs narrow block_network=True; with block_network=False "
                "they would narrow nothing")
        return "host" if open_network == "host" else {"allow": ["*:*"]}
    if blocks and not cidrs_by_proxy:
        raise SandboxTerminalError(
            "allow_egress_to_cidrs means any port and protocol, and commands in a Berth workspace reach the network "
            "by an HTTP proxy alone, so by TCP, and by programs that use the proxy variables. If that will do, use "
            "BerthSandboxBackend(cidrs_by_proxy=True)")
    entries = sorted({f"{host}:443" for host in hosts}) + sorted({f"{block}:*" for block in blocks})
    if len(entries) > ENTRIES_MAX:
        raise SandboxTerminalError(f"a workspace may reach at most {ENTRIES_MAX} hosts and blocks, not {len(entries)}")
    return {"allow": entries} if entries else "none"


def _sequence(field: str, value: Optional[Sequence[str]]) -> List[str]:
    if isinstance(value, str):
        raise SandboxTerminalError(f"{field} is a sequence of strings, not one: [{value!r}]")
    return list(value or ())


def _hosts(value: Optional[Sequence[str]]) -> List[str]:
    hosts = _sequence("allow_egress_to", value)
    for host in hosts:
        if not _is_host(host):
            raise SandboxTerminalError(
                f"allow_egress_to has {host!r}, which is no plain host name like 'pypi.org' or '*.example.org'")
    return [host.lower() for host in hosts]


def _is_host(host: object) -> bool:
    if not isinstance(host, str) or len(host) > 253:
        return False
    labels = (host[2:] if host.startswith("*.") else host).split(".")
    # A last label of digits is an address's; a single one is no name on the internet.
    return len(labels) > 1 and not labels[-1].isdigit() and all(HOST_LABEL.match(label) for label in labels)


def _blocks(value: Optional[Sequence[str]]) -> List[str]:
    blocks = []
    for text in _sequence("allow_egress_to_cidrs", value):
        try:
            block = ipaddress.IPv4Network(text)
        except (ValueError, TypeError) as error:
            raise SandboxTerminalError(
                f"allow_egress_to_cidrs has {text!r}, which is no IPv4 block like '203.0.113.0/24': {error}") from None
        if block.prefixlen == 0:
            raise SandboxTerminalError("allow_egress_to_cidrs has every address; block_network=False asks for that")
        blocks.append(str(block))
    return blocks


def environment_of(spec: SandboxSpec, network: Any) -> Dict[str, str]:
    """What commands are given; SandboxTerminalError for what cannot be given."""
    environment: Dict[str, str] = {}
    for name, value in (spec.env or {}).items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SandboxTerminalError(f"env has {name!r}, which does not map a string to a string")
        if not NAME.match(name):
            raise SandboxTerminalError(f"env has {name!r}, which is no name of a variable")
        if "\0" in value:
            raise SandboxTerminalError(f"env has a NUL in the value of {name}")
        if name.startswith("BERTH_"):
            raise SandboxTerminalError(f"env has {name}: names that begin with BERTH_ are the service's own")
        if isinstance(network, dict) and name.lower() in PROXY_VARIABLES:
            raise SandboxTerminalError(f"env has {name}, which the service sets: its proxy is the only way out")
        environment[name] = value
    try:
        size = len(json.dumps(environment, ensure_ascii=False).encode())
    except UnicodeEncodeError:
        raise SandboxTerminalError("env has text that is no UTF-8") from None
    if size > ENVIRONMENT_MAX:
        raise SandboxTerminalError(f"env takes {size} bytes as JSON; at most {ENVIRONMENT_MAX} can be kept")
    return environment


def difference(document: Mapping[str, Any], wanted: Any) -> Optional[str]:
    """Why a policy as the service has it is not what it was; None when it is, and holds. wanted: what was asked for
    when the sandbox was made, or was first seen."""
    for trouble, text in (("fenced", "commands were found to be held otherwise than asked"),
                          ("refused", "it cannot be enforced")):
        if document.get(trouble):
            return f"{text}: {document[trouble]}"
    if not isinstance(document.get("measured"), dict):
        return "what holds its commands was not measured"
    asked = document.get("asked")
    if asked == wanted:
        return None
    if not isinstance(asked, dict) or not isinstance(wanted, dict):
        return "the service tells of none"
    changed = sorted(name for name in {*asked, *wanted} if asked.get(name) != wanted.get(name))
    return "changed: " + ", ".join(f"{name} is {json.dumps(asked.get(name))}, was {json.dumps(wanted.get(name))}"
                                   for name in changed)


def holds(document: Mapping[str, Any], network: Any) -> Optional[str]:
    """Why a policy is not the one just asked for; None when it is, and holds."""
    asked = document.get("asked")
    found = asked.get("network") if isinstance(asked, dict) else None
    if isinstance(found, dict) and isinstance(network, dict):
        same = sorted(found.get("allow", ())) == sorted(network["allow"])
    else:
        same = found == network
    if not same:
        return f"network is {json.dumps(found)}, not {json.dumps(network)}"
    return difference(document, asked)
