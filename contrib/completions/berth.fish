# Completion of berth(1) for fish. What there is to choose from, berth itself says.
function __berth_complete
    set -l words (commandline -opc) (commandline -ct)
    set -l found ($words[1] complete -- $words[2..-1] 2>/dev/null)
    if set -q found[1]
        printf '%s\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c berth -f -a '(__berth_complete)'
