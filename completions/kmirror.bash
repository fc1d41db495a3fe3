# Completion of kmirror and kafka-mirrors for bash 4 or later: `kmirror completion bash` prints this.
_kmirror_completion() {
    local kind value typed
    printf -v typed '%s\n' "${COMP_WORDS[@]:0:COMP_CWORD+1}"
    COMPREPLY=()
    while IFS=$'\t' read -r kind value _; do
        case $kind in
            file) compopt -o default ;;
            dir) compopt -o dirnames ;;
            plain) COMPREPLY+=("$value") ;;
        esac
    done < <(env COMP_WORDS="$typed" _KMIRROR_COMPLETE=bash_complete "${1/#\~/$HOME}" 2>/dev/null)
}
complete -F _kmirror_completion kmirror kafka-mirrors
