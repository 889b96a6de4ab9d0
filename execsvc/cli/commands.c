#include "cli/cli.h"

static const char exec_usage[] =
    "usage: berth exec [OPTION…] [--] CMD [ARG…]\n"
    "Runs a command in a workspace, beside its files, and exits with its status. Inside a\n"
    "mount, the workspace and the directory are those of the working directory. Standard input\n"
    "is the command's only with -i; without it, that is empty.\n"
    "\n"
    "  -w, --workspace ID    the workspace's thread ID\n"
    "  -C, --directory DIR   (or --cwd) start in DIR of the workspace; a relative one is relative\n"
    "                        to where you stand, or with -w to the workspace's root; a path\n"
    "                        through a mount tells the workspace, too\n"
    "      --path WHERE      where it sees the workspace: local, at the path that it has in the\n"
    "                        mount here, or it is not started; remote, where the service has it;\n"
    "                        auto, which is the default: local if that can be\n"
    "  -e, --env K=V         sets a variable; -e K passes on the one set here\n"
    "  -i, --interactive     passes standard input on; without it the command's is empty\n"
    "  -t, --tty             runs it in a terminal\n"
    "      --id EXEC         a name for this run: one with it that is there already is attached\n"
    "                        to, so it is never started twice\n"
    "      --detach          prints its ID once it has started, and leaves it to itself\n"
    "      --timeout SECONDS  ends it after this time (also as 1.5, 500ms, 5m, 2h)\n"
    "      --on-disconnect continue|kill\n"
    "                        when this program is gone the command goes on, or is ended after a\n"
    "                        while, which is the default\n"
    "      --reattach SECONDS\n"
    "                        for how long a lost connection is made again (60)\n"
    "      --max-output N    bytes of each stream that are kept for logs and attach, and up to\n"
    "                        1 MiB more (16M; at least 64k)\n"
    "      --memory N        what all its processes may have together (k, M and G are known);\n"
    "                        when they need more, it is killed whole: oom_killed\n"
    "      --processes N     how many processes and threads it may have at a time\n"
    "      --merge           standard error goes into standard output, in order\n"
    "      --json            prints one JSON object: the verdict and the output\n"
    "      --persist SECONDS  how long the connection is held for later commands; see\n"
    "                        `berth help connection`\n"
    "      --no-persist      the connection is this command's alone\n"
    "\n"
    "Exit status: the command's; 128+n if signal n ended it; 124 timed out; 127 no such\n"
    "program; 126 it cannot be run; 125 not started by fault of berth (also a wrong command\n"
    "line); 120 the outcome is not known.\n"
    "\n"
    "Examples\n"
    "  cd ~/berth/demo/src && berth exec -- make -j4\n"
    "  berth exec -w demo -- git status\n"
    "  tar c . | berth exec -w demo -i -- tar x\n"
    "  berth exec -it -- bash\n"
    "  berth exec --timeout 60 --json -- ./run-tests | jq .verdict\n"
    "  berth exec -- sh -c 'make 2>&1 | tail'   pipes need a shell: the words are not joined\n";

const struct cli_command cli_commands[] = {
    {"create", cmd_create, "make workspaces, or find those that are there", create_usage, true},
    {"ls", cmd_ls, "list workspaces", ls_usage},
    {"rm", cmd_rm, "remove workspaces and all their files", rm_usage, true},
    {"label", cmd_label, "set or print a workspace's labels", label_usage, true},
    {"ttl", cmd_ttl, "say when a workspace is removed by itself", ttl_usage, true},
    {"stop", cmd_stop, "end a workspace's commands and let none be started", stop_usage, true},
    {"start", cmd_start, "let commands be started in a stopped workspace again", start_usage, true},
    {"provider", cmd_provider, "systems that make sandboxes for workspaces", provider_usage},
    {"snapshot", cmd_snapshot, "keep copies of a workspace's files, and bring them back",
     snapshot_usage, true},
    {"fork", cmd_fork, "make a workspace with the files of another", fork_usage, true},
    {"export", cmd_export, "write a workspace's files to an archive", export_usage},
    {"import", cmd_import, "make a workspace from an archive", import_usage, true},
    {"mount", cmd_mount, "show workspaces as directories here", mount_usage},
    {"umount", cmd_umount, "take a mount down", umount_usage},
    {"exec", cmd_exec, "run a command in a workspace, beside its files", exec_usage},
    {"shell", cmd_shell, "open a shell in a workspace", shell_usage},
    {"ps", cmd_ps, "list commands", ps_usage},
    {"logs", cmd_logs, "print what a command has printed", logs_usage},
    {"attach", cmd_attach, "attach to a command that runs", attach_usage},
    {"wait", cmd_wait, "wait until commands have ended", wait_usage},
    {"kill", cmd_kill, "end commands and all that belongs to them", kill_usage, true},
    {"policy", cmd_policy, "what the commands of a workspace may do, and what holds them to it",
     policy_usage, true},
    {"visibility", cmd_visibility, "what a workspace or a mount hides and leaves out",
     visibility_usage, true},
    {"status", cmd_status, "the service and the mounts of this machine", status_usage},
    {"top", cmd_top, "what workspaces, commands and mounts do, as it goes on", top_usage},
    {"connection", cmd_connection, "connections that are held for later commands",
     connection_usage},
    {"cache", cmd_cache, "what mounts keep on this machine's disk", cache_usage},
    {"token", cmd_token, "who may do what at a service of this machine", token_usage},
    {"doctor", cmd_doctor, "find out what is wrong, and what to do", doctor_usage},
    {"complete", cmd_complete, NULL, ""},
    {"help", cmd_help, "explain a command", help_usage},
    {0},
};
