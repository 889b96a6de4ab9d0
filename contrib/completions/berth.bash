# Completion of berth(1) for bash. What there is to choose from, berth itself says.
_berth()
{
    local cur words cword line
    if declare -F _get_comp_words_by_ref >/dev/null; then
        _get_comp_words_by_ref -n := cur words cword
    else
        words=("${COMP_WORDS[@]}") cword=$COMP_CWORD cur=${COMP_WORDS[COMP_CWORD]}
    fi
    COMPREPLY=()
    while IFS=$'\t' read -r line _; do
        COMPREPLY+=("$(printf '%q' "$line")")
    done < <("${words[0]}" complete -- "${words[@]:1:cword}" 2>/dev/null)
    # What bash takes for a word begins behind these.
    local before=${cur%"${cur##*[:=]}"}
    [[ $before == *:* && $COMP_WORDBREAKS != *:* ]] && before=
    [[ $before == *=* && $COMP_WORDBREAKS != *=* ]] && before=
    COMPREPLY=("${COMPREPLY[@]#"$before"}")
    [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
    return 0
}
complete -o default -F _berth berth
