"""Ports for sandboxes that a test starts as an operator does: by the command, with their own base port."""

from __future__ import annotations

from kmirror_sandbox.ports import free_ports


def free_base_port() -> int:
    """Return a base port whose whole block is free."""
    return free_ports(60, in_a_row=True)[0]
