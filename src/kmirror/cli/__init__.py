"""The command line: thin click commands over `kmirror.ops`."""
