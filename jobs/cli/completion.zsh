# Completion of submit.py for zsh: eval "$(python submit.py completion zsh)"

_submit_py() {
    local kind
    local -a found open closed
    found=("${(@f)$(@COMMAND@ completion zsh --line "${(j: :)${(@)words[1,CURRENT]}}" 2>/dev/null)}")
    kind=$found[1]
    found=("${(@)found[2,-1]}")
    open=("${(@M)found:#*[=/]}")
    closed=("${(@)found:#*[=/]}")
    case $kind in
        files) _files ;;
        folders) _files -/ ;;
    esac
    compadd -S '' -a open
    compadd -a closed
}

# `python submit.py ...`: other programs keep the completion that python has.
_submit_py_by_python() {
    if [[ ${words[2]:t} == submit.py ]]; then
        _submit_py
    elif (( $+functions[_python] )); then
        _python "$@"
    else
        _default
    fi
}

if ! (( $+functions[compdef] )); then autoload -Uz compinit && compinit; fi
compdef _submit_py submit.py
compdef _submit_py_by_python python python3
