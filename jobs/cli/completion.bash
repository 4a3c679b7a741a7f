# Completion of submit.py for bash: eval "$(python submit.py completion bash)"

_submit_py() {
    local kind word
    COMPREPLY=()
    {
        read -r kind
        while IFS= read -r word; do COMPREPLY+=("$word"); done
    } < <(@COMMAND@ completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
    case $kind in
        files) compopt -o default ;;
        folders) compopt -o dirnames ;;
    esac
    if [[ ${COMPREPLY[*]} == *[=/] ]]; then compopt -o nospace; fi
}

# `python submit.py ...`: other programs keep the completion that python had.
_submit_py_by_python() {
    if [[ ${COMP_WORDS[1]##*/} == submit.py ]]; then
        _submit_py "$@"
    elif [[ -n $_submit_py_python_before ]]; then
        "$_submit_py_python_before" "$@"
    else
        compopt -o default
    fi
}

for _submit_py_loader in _comp_load _completion_loader; do
    if declare -F "$_submit_py_loader" >/dev/null; then "$_submit_py_loader" python 2>/dev/null; fi
done
if [[ $(complete -p python 2>/dev/null) =~ -F\ ([^ ]+) && ${BASH_REMATCH[1]} != _submit_py_by_python ]]; then
    _submit_py_python_before=${BASH_REMATCH[1]}
fi
unset _submit_py_loader
complete -F _submit_py submit.py
complete -F _submit_py_by_python python python3
