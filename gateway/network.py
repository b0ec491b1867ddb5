"""Names of hosts and origins: which are this machine, which are the same."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import urlsplit

__all__ = ["is_loopback", "same_origin", "split_host"]

_DEFAULT_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]/@\s]*)(?::([0-9]{1,5}))?")


def split_host(value: str) -> tuple[str, int | None]:
    """A Host header's name (lower case, without brackets or a trailing dot) and port; an empty name when malformed."""
    if value.count(":") > 1 and not value.startswith("["):
        value = f"[{value}]"  # a bare IPv6 address, as settings have it
    match = _HOST.fullmatch(value.strip())
    if match is None:
        return "", None
    name = match[1].strip("[]").lower().removesuffix(".")
    return name, int(match[2]) if match[2] else None


def is_loopback(name: str) -> bool:
    """Whether this host name or address is the machine itself, whatever DNS says."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


def same_origin(origin: str, host: str) -> bool:
    """Whether an Origin header names the host that the request was sent to. Schemes may differ behind a TLS proxy."""
    try:
        parts = urlsplit(origin)
        origin_port = parts.port
    except ValueError:
        return False
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        return False
    default = _DEFAULT_PORTS[parts.scheme]
    name, port = split_host(host)
    return (parts.hostname.removesuffix("."), origin_port or default) == (name, port or default)
