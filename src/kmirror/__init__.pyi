from kmirror.library import *  # noqa: F403

__version__: str
