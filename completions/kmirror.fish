# Completion of kmirror and kafka-mirrors for fish: `kmirror completion fish` prints this.
function __kmirror_completion
    set -l typed (commandline -opc) (commandline -ct)
    set -l flag (string match -r -- '^--[^=]*=' $typed[-1])
    set -l program (string replace -r '^~' $HOME -- $typed[1])
    set -lx COMP_WORDS (printf '%s\n' $typed | string collect --no-trim-newlines)
    for line in (env _KMIRROR_COMPLETE=fish_complete $program 2>/dev/null)
        set -l item (string split \t -- $line)
        switch $item[1]
            case file
                printf '%s\n' "$flag"(__fish_complete_path $item[2])
            case dir
                printf '%s\n' "$flag"(__fish_complete_directories $item[2])
            case plain
                printf '%s%s\t%s\n' "$flag" $item[2] $item[3]
        end
    end
end
complete -c kmirror -f -a '(__kmirror_completion)'
complete -c kafka-mirrors -f -a '(__kmirror_completion)'
