"""Mirror Kafka topics between stock clusters with the same offsets, record for record.

`kmirror.Client` and its types are imported on first use: `import kmirror` costs nothing.
"""

import importlib

__version__ = "0.1.0"

#: Re-exported from `kmirror.library`; `__init__.pyi` declares the same for type checkers.
_FROM_CLIENT = frozenset(
    {
        "ChangeRow",
        "CheckLine",
        "CheckReport",
        "Client",
        "ErrorInfo",
        "Event",
        "ExitCode",
        "GroupResult",
        "HistoriesDifferError",
        "KmirrorError",
        "MirrorRow",
        "Outcome",
        "OutcomeUnknown",
        "PartitionRow",
        "PartlyDoneError",
        "Reason",
        "RefusedError",
        "SettingRow",
        "StopTotals",
        "TimedOutError",
        "TopicResult",
        "UnreachableError",
        "UsageError",
        "VerbResult",
        "VerifyOutcome",
        "VerifyRow",
    }
)


def __getattr__(name: str) -> object:
    if name not in _FROM_CLIENT:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("kmirror.library"), name)
