"""Mirror Kafka topics between stock clusters with the same offsets, record for record.

`kmirror.Client` and its types are imported on first use: `import kmirror` costs nothing.
"""

import importlib

__version__ = "0.1.0"


def __getattr__(name: str) -> object:
    # `kmirror.library` exports classes only, as `__init__.pyi` says; what is not one must not cost its import
    if name[:1].isupper():
        library = importlib.import_module("kmirror.library")
        if name in library.__all__:
            return getattr(library, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
