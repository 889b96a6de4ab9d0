# shellcheck shell=sh disable=SC2016 # what is in single quotes is for the sandbox's shell
# Sandboxes for any agent framework that can start a program: functions around berth(1), for a POSIX shell.
#
#     . berth-sandbox.sh
#     id=$(sandbox_create "$conversation" none --ttl 1h) || exit
#     sandbox_run "$id" 60 'make test'; status=$?
#     sandbox_write "$id" notes/a.txt < a.txt; sandbox_read "$id" notes/a.txt 1048576
#     sandbox_destroy "$id"
#
# The service is what berth(1) finds: BERTH_URL and its like. Names are data: nothing of an ID, a path or
# a value is ever part of a script.

# sandbox_get_or_create ID: the workspace of this ID, which is made if there is none, as the service makes them.
# Whoever asks at once gets the same one.
sandbox_get_or_create()
{
    berth create -- "$1" > /dev/null && printf '%s\n' "$1"
}

# sandbox_create ID NETWORK [OPTION of berth create]…: a new one. NETWORK: none, host, or HOST:PORT with commas between
# them. Prints the ID. If there is one already, or its commands cannot be held so, it is an error, and nothing is left
# or changed.
sandbox_create()
{
    sandbox_id=$1
    case $2 in
    none | host) sandbox_network="\"$2\"" ;;
    *[!A-Za-z0-9.:*,/_-]* | '')
        echo "sandbox_create: the second word is the network: none, host, or HOST:PORT with commas between them, not '$2'" >&2
        return 2 ;;
    *) sandbox_network="{\"allow\": [\"$(printf %s "$2" | sed 's/,/", "/g')\"]}" ;;
    esac
    shift 2
    printf '{"network": %s}' "$sandbox_network" |
        berth create --exclusive --policy - "$@" -- "$sandbox_id" > /dev/null || return
    # As it is measured: this fails when commands cannot be held so.
    if ! sandbox_told=$(berth policy -- "$sandbox_id"); then
        printf '%s\n' "$sandbox_told" >&2
        berth rm --force -- "$sandbox_id"
        return 1
    fi
    printf '%s\n' "$sandbox_id"
}

# sandbox_run ID SECONDS LINE [OPTION of berth exec]…: runs a line of shell; --json prints a verdict and the output instead.
# Its status is that of berth exec: the line's own; 124 when its time was over, and nothing of it is left; 125 when it
# was not started; 120 when its outcome is not known, which is neither a success nor "not run".
sandbox_run()
{
    sandbox_id=$1 sandbox_seconds=$2 sandbox_line=$3
    shift 3
    berth exec --workspace "$sandbox_id" --timeout "$sandbox_seconds" "$@" -- /bin/sh -c "$sandbox_line"
}

# sandbox_read ID PATH [MAX]: a file's bytes. 66: it is not there; 67: it is a directory; 68: it is no regular file, for
# which nobody waits; 69: it has more than MAX bytes, and its size is on standard error.
sandbox_read()
{
    berth exec --workspace "$1" --timeout 120 -- /bin/sh -c '
        [ -e "$1" ] || { echo "$1: it is not there" >&2; exit 66; }
        [ -d "$1" ] && { echo "$1: it is a directory" >&2; exit 67; }
        [ -f "$1" ] || { echo "$1: it is no regular file" >&2; exit 68; }
        size=$(stat -Lc %s -- "$1") || exit
        [ -z "$2" ] || [ "$size" -le "$2" ] || { echo "$1: it has $size bytes, more than $2" >&2; exit 69; }
        exec cat -- "$1"' berth "$2" "${3-}"
}

# sandbox_write ID PATH: standard input as a file, whole or not at all, with the directories above it.
sandbox_write()
{
    berth exec --workspace "$1" --timeout 600 --interactive -- /bin/sh -c '
        [ -d "$1" ] && { echo "$1: it is a directory" >&2; exit 67; }
        [ -e "$1" ] && ! [ -f "$1" ] && { echo "$1: it is no regular file" >&2; exit 68; }
        case $1 in */*) above=${1%/*}/ ;; *) above=./ ;; esac
        mkdir -p -- "$above" && new=$(mktemp "$above.berth-XXXXXX") || exit
        if cat > "$new" && chmod 644 "$new" && mv -f -- "$new" "$1"; then exit 0; fi
        rm -f -- "$new"
        exit 1' berth "$2"
}

# sandbox_list ID [PATH]: "TYPE NAME" and a NUL for each entry, TYPE as in find(1): f, d, l, …
sandbox_list()
{
    berth exec --workspace "$1" --timeout 120 -- /bin/sh -c '
        cd -- "$1" || exit 66
        exec find . -mindepth 1 -maxdepth 1 -printf "%y %f\0"' berth "${2:-.}"
}

# sandbox_destroy ID: removes it with all that runs there. One that is not there is removed already.
sandbox_destroy()
{
    berth rm --force -- "$1"
}
