"""How fast kmirror copies, held against MirrorMaker 2 and against what the destination takes at most: `make bench`."""
