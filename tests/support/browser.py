"""Find this machine's browser, if there is one: none of the project's packages brings one."""

from __future__ import annotations

import shutil

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def has_chromium() -> bool:
    return any(shutil.which(name) for name in _NAMES)


def chromium() -> str:
    """Return its path."""
    return next(found for name in _NAMES if (found := shutil.which(name)))
