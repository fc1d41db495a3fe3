"""Ports for sandboxes that a test starts as an operator does: by the command, with their own base port."""

from __future__ import annotations

from kmirror_sandbox.ports import free_ports, is_free


def free_base_port() -> int:
    """Return a base port whose whole block is free."""
    while True:
        base = free_ports(1)[0]
        if all(is_free(port) for port in range(base, base + 60)):
            return base
