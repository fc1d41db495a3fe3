source (status dirname)/kmirror.fish
