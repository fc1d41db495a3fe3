from kmirror.client import *  # noqa: F403

__version__: str
