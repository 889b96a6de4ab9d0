#include <string.h>
#include <strings.h>

#include "cli/at_place.h"
#include "cli/cli.h"
#include "cli/tree_call.h"
#include "names/thread_id.h"

const char export_usage[] =
    "usage: berth export [OPTION…] [ID [FILE]]\n"
    "       berth export [OPTION…] --snapshot SNAPSHOT [FILE]\n"
    "Writes the files of a workspace, or of a snapshot, to a tar archive: to FILE, or to standard\n"
    "output. What the visibility rules hide is left out, and so are sockets and devices. FILE\n"
    "is there whole, or as it was. In a mount . is the workspace in which one stands, and so is "
    "none.\n"
    "\n"
    "  -s, --snapshot SNAPSHOT  the files that it has kept\n"
    "  -n, --name               ID is a directory name, as `berth ls -q` shows it\n"
    "  -z, --compress HOW       none, zstd or gzip; without it FILE's name tells (.zst, .gz). A\n"
    "                           name of another format (.zip, .xz) is refused\n"
    "\n"
    "Commands that run go on, and what they change meanwhile is as it is found. For files of one\n"
    "moment export a snapshot.\n"
    "\n"
    "Examples\n"
    "  berth export demo demo.tar.zst\n"
    "  berth export demo | tar t\n"
    "  berth export --snapshot before-the-change before.tar.gz\n";

static const struct option options[] = {
    {"snapshot", required_argument, NULL, 's'},
    {"name", no_argument, NULL, 'n'},
    {"compress", required_argument, NULL, 'z'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static bool is_compression(const char *word)
{
    return strcmp(word, "none") == 0 || strcmp(word, "zstd") == 0 || strcmp(word, "gzip") == 0;
}

/* What says in its name that it is an archive of another kind, or compressed in another way, and
 * would be none. */
static bool claims_other_format(const char *file)
{
    static const char *const ends[] = {
        "zip", "7z",  "rar", "jar",  "cpio", "ar",  "iso", "xz",  "txz", "bz2",     "tbz2", "tbz",
        "bz",  "lz",  "tlz", "lzma", "lz4",  "lzo", "br",  "cab", "Z",   "taz",     "zipx", "tz2",
        "tb2", "deb", "rpm", "img",  "lrz",  "sz",  "war", "whl", "xar", "squashfs"};
    const char *slash = strrchr(file, '/');
    const char *dot = strrchr(slash ? slash : file, '.');
    for (size_t i = 0; dot && i < ARRAY_SIZE(ends); i++)
        if (strcasecmp(dot + 1, ends[i]) == 0)
            return true;
    return false;
}

int cmd_export(struct cli *cli, int argc, char **argv)
{
    const char *snapshot = NULL, *compression = NULL;
    uint32_t flags = 0;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":s:nz:h", options, NULL)) != -1) {
        if (option == 's')
            snapshot = optarg;
        else if (option == 'n')
            flags = WIRE_WORKSPACE_BY_NAME;
        else if (option == 'z')
            compression = optarg;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (compression && !is_compression(compression))
        return cli_usage_error(cli, "%s: it is none, zstd or gzip", compression);
    const char *id = snapshot ? NULL : argv[optind];
    char **rest = argv + optind + (snapshot || !id ? 0 : 1);
    const char *file = *rest;
    if (file && rest[1])
        return cli_usage_error(cli, "one file at a time");
    if (file && claims_other_format(file))
        return cli_usage_error(cli,
                               "%s: only tar is written, plain (.tar) or compressed (.tar.zst, "
                               ".tar.gz)",
                               file);
    if (id && strlen(id) > (flags ? THREAD_NAME_MAX : THREAD_ID_MAX))
        return cli_usage_error(cli, "%s: too long", id);
    if ((!file || strcmp(file, "-") == 0) && isatty(STDOUT_FILENO))
        return cli_usage_error(cli, "an archive is nothing for a terminal; give a FILE");
    struct failure failure;
    struct tree_call *call;
    if (cli_need_network(cli, &failure) < 0) {
        cli_error(cli, "%s", failure.text);
        return CLI_FAILED;
    }
    struct which w = {.key = id, .by_name = flags};
    if (snapshot ? !which_service(cli) : !at_place_use(cli, &w))
        return snapshot || id ? CLI_FAILED : CLI_USAGE;
    const struct wire_message request = {.type = WIRE_TREE_EXPORT,
                                         .tree_export = {.workspace_flags = which_flags(&w),
                                                         .workspace = bytes_of_string(w.key),
                                                         .snapshot = bytes_of_string(snapshot)}};
    if (tree_call_begin(cli, &request, &call) < 0)
        return CLI_FAILED;
    int r = archive_download(cli, snapshot ? snapshot : w.key, file, compression, call);
    return r < 0 ? CLI_FAILED : CLI_OK;
}
