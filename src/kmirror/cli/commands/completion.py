"""`completion`: the shell completion scripts, and the answers that they get when Tab is pressed.

Click finds the candidates. A script passes the words up to the cursor, one per line, and gets lines of
`KIND<tab>VALUE<tab>HELP`, where KIND is `plain`, `file` or `dir`; for the last two the shell completes paths itself.
kmirror and kafka-mirrors answer alike, so a shell needs one script for both.
"""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, shell_complete, split_arg_string

from kmirror.cli.options import COMPLETE_VARIABLE, Call, verb

_BASH = r"""# Completion of kmirror and kafka-mirrors for bash 4 or later: `kmirror completion bash` prints this.
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
"""

_ZSH = r"""#compdef kmirror kafka-mirrors
# Completion of kmirror and kafka-mirrors for zsh: `kmirror completion zsh` prints this.
_kmirror() {
    local line typed
    local -a item offers
    printf -v typed '%s\n' "${(@)words[1,CURRENT]}"
    compset -P 1 '--*='
    for line in ${(f)"$(env COMP_WORDS="$typed" _KMIRROR_COMPLETE=zsh_complete ${~words[1]} 2>/dev/null)"}; do
        item=("${(@ps:\t:)line}")
        case $item[1] in
            (file) _files ;;
            (dir) _files -/ ;;
            (plain) offers+=("${item[2]//:/\\:}${item[3]:+:$item[3]}") ;;
        esac
    done
    (( ! $#offers )) || _describe kmirror offers
}
if [[ $funcstack[1] == _kmirror ]]; then # this is its file, found in $fpath
    _kmirror
else
    compdef _kmirror kmirror kafka-mirrors
fi
"""

_FISH = r"""# Completion of kmirror and kafka-mirrors for fish: `kmirror completion fish` prints this.
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
"""


class _Bash(ShellComplete):
    """Speak the completion protocol; only the script differs between shells."""

    name = "bash"
    source_template = _BASH

    def source(self) -> str:
        """Return the script."""
        return self.source_template

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the words before the current one, and that one; bash splits --flag=value into three words."""
        words = [" ".join(split_arg_string(word)) for word in os.environ["COMP_WORDS"].split("\n")[:-1]]
        return [word for word in words[1:-1] if word != "="], words[-1].removeprefix("=")

    def format_completion(self, item: CompletionItem) -> str:
        """Return one candidate as a line."""
        summary = (item.help or "").split("\n")[0]
        return f"{item.type}\t{item.value}\t{summary}"


class _Zsh(_Bash):
    name = "zsh"
    source_template = _ZSH


class _Fish(_Bash):
    name = "fish"
    source_template = _FISH


_SHELLS: dict[str, type[_Bash]] = {shell.name: shell for shell in (_Bash, _Zsh, _Fish)}


def answer(command: click.Command, instruction: str) -> int:
    """Print the candidates that the shell asks for, and return the exit code."""
    for shell in _SHELLS.values():
        add_completion_class(shell)
    return shell_complete(command, {}, command.name or "", COMPLETE_VARIABLE, instruction)


@verb(
    "completion",
    "Print the shell completion script for kmirror and kafka-mirrors."
    "\n\nbash: add `source <(kmirror completion bash)` to ~/.bashrc."
    "\n\nzsh: add `source <(kmirror completion zsh)` to ~/.zshrc, after compinit."
    "\n\nfish: add `kmirror completion fish | source` to ~/.config/fish/config.fish.",
    click.Argument(["shell"], type=click.Choice([*_SHELLS])),
    examples=(
        "kmirror completion bash",
        "kmirror completion zsh",
        "kmirror completion fish",
    ),
    destination=False,
    documents=False,
)
def completion_verb(call: Call, shell: str) -> int:
    call.output.screen.line(_SHELLS[shell].source_template.rstrip("\n"))
    return 0
