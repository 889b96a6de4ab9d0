#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include "base/cleanup.h"
#include "base/distance.h"
#include "disk.h"
#include "stream/url.h"

const char options_usage[] =
    "Usage: berthfs [URL...] MOUNTPOINT [-f] [-w ID] [-o OPTION,...]\n"
    "\n"
    "Mounts the workspaces of a Berth service, one directory each; or of several.\n"
    "\n"
    "  -w ID        mount this one workspace (thread ID or directory name)\n"
    "  -f           stay in the foreground, log to standard error\n"
    "  -o OPTIONS   url=, service=NAME, services=NAME:NAME...|all, config=, token_file=, ca_file=, "
    "cert_file=, key_file=,\n"
    "               workspace=ID, timeout=SECONDS, log=FILE, owner=map|server,\n"
    "               symlinks=contain|contain+translate|verbatim|refuse,\n"
    "               system_prefixes=PATH:PATH..., prune=PROFILE|FILE, locks=server|local,\n"
    "               cache=yes|no, cache_size=SIZE, disconnected=fail|serve, "
    "credentials=default|own,\n"
    "               allow_other, ro, and the usual options of mount(8)\n"
    "  -V           version\n"
    "  -h           this help\n";

/* Options that are for mount(8), systemd or the boot scripts, or that are always in force. */
static const char *const ignored[] = {
    "defaults",   "auto",  "noauto",  "user",         "nouser",
    "users",      "owner", "nogroup", "group",        "_netdev",
    "nofail",     "dev",   "suid",    "relatime",     "norelatime",
    "loud",       "mand",  "nomand",  "auto_unmount", "default_permissions",
    "noiversion", "fg",    "bg",
};

/* Of two that contradict each other the last one holds: mount(8) puts what "user" implies first. */
static const struct {
    const char *name;
    unsigned long flag;
    bool off;
} flags[] = {
    {"ro", MS_RDONLY, false},
    {"rw", MS_RDONLY, true},
    {"nosuid", MS_NOSUID, false},
    {"nodev", MS_NODEV, false},
    {"noexec", MS_NOEXEC, false},
    {"exec", MS_NOEXEC, true},
    {"sync", MS_SYNCHRONOUS, false},
    {"async", MS_SYNCHRONOUS, true},
    {"dirsync", MS_DIRSYNC, false},
    {"noatime", MS_NOATIME, false},
    {"atime", MS_NOATIME, true},
    {"nodiratime", MS_NODIRATIME, false},
    {"diratime", MS_NODIRATIME, true},
    {"strictatime", MS_STRICTATIME, false},
    {"nostrictatime", MS_STRICTATIME, true},
    {"lazytime", MS_LAZYTIME, false},
    {"nolazytime", MS_LAZYTIME, true},
};

/* Ours that have a value. */
static const char *const valued[] = {
    "url",        "service",   "services",        "config",       "token_file",
    "ca_file",    "cert_file", "key_file",        "workspace",    "cache",
    "cache_size", "log",       "prune",           "timeout",      "owner",
    "locks",      "symlinks",  "system_prefixes", "disconnected", "credentials",
};

static const char *const passed_on[] = {"context=", "fscontext=", "defcontext=", "rootcontext="};

static bool starts_with(const char *s, const char *prefix)
{
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static int set_string(char **field, const char *value, struct failure *f)
{
    char *copy = strdup(value);
    if (!copy)
        return failure_set(f, -ENOMEM, "out of memory");
    free(*field);
    *field = copy;
    return 0;
}

static int set_timeout(struct options *o, const char *value, struct failure *f)
{
    char *end;
    errno = 0;
    double seconds = strtod(value, &end);
    if (errno || end == value || *end || !(seconds >= 0 && seconds <= 86400))
        return failure_set(f, -EINVAL, "timeout=%s: expected seconds, from 0 to 86400", value);
    o->timeout_ms = (uint32_t)(seconds * 1000);
    return 0;
}

static int set_owner(struct options *o, const char *value, struct failure *f)
{
    if (strcmp(value, "map") == 0)
        o->owner_server = false;
    else if (strcmp(value, "server") == 0)
        o->owner_server = true;
    else
        return failure_set(f, -EINVAL, "owner=%s: expected owner=map or owner=server", value);
    return 0;
}

static int set_symlinks(struct options *o, const char *value, struct failure *f)
{
    enum link_mode mode;
    int r = link_mode_parse(value, &mode, f);
    return r < 0 ? r : set_string(&o->symlinks, value, f);
}

static int set_system_prefixes(struct options *o, const char *value, struct failure *f)
{
    int r = link_prefixes_check(value, f);
    return r < 0 ? r : set_string(&o->system_prefixes, value, f);
}

static int set_locks(struct options *o, const char *value, struct failure *f)
{
    if (strcmp(value, "server") == 0)
        o->locks_local = false;
    else if (strcmp(value, "local") == 0)
        o->locks_local = true;
    else
        return failure_set(f, -EINVAL, "locks=%s: expected locks=server or locks=local", value);
    return 0;
}

static int set_cache(struct options *o, const char *value, struct failure *f)
{
    if (strcmp(value, "yes") == 0)
        o->cache = true;
    else if (strcmp(value, "no") == 0)
        o->cache = false;
    else
        return failure_set(f, -EINVAL, "cache=%s: expected cache=yes or cache=no", value);
    return 0;
}

static int set_disconnected(struct options *o, const char *value, struct failure *f)
{
    if (strcmp(value, "serve") == 0)
        o->serve = true;
    else if (strcmp(value, "fail") == 0)
        o->serve = false;
    else
        return failure_set(
            f, -EINVAL, "disconnected=%s: expected disconnected=fail or disconnected=serve", value);
    return 0;
}

static int set_credentials(struct options *o, const char *value, struct failure *f)
{
    if (strcmp(value, "own") == 0)
        o->alone = true;
    else if (strcmp(value, "default") == 0)
        o->alone = false;
    else
        return failure_set(
            f, -EINVAL, "credentials=%s: expected credentials=default or credentials=own", value);
    return 0;
}

static int set_cache_size(struct options *o, const char *value, struct failure *f)
{
    static const char units[] = "KMG";
    char *end;
    errno = 0;
    unsigned long long size = strtoull(value, &end, 10);
    const char *unit = *end ? strchr(units, *end) : NULL;
    unsigned shift = unit ? 10 * (unsigned)(unit - units + 1) : 0;
    bool right = !errno && value[0] >= '0' && value[0] <= '9' && end[unit != NULL] == '\0' &&
                 size <= DISK_SIZE_MAX >> shift;
    size <<= right ? shift : 0;
    if (!right || (size && size < DISK_SIZE_MIN))
        return failure_set(f, -EINVAL,
                           "cache_size=%s: expected bytes, from 4M to 64G (K, M and G are powers "
                           "of 1024), or 0",
                           value);
    o->cache_size = size;
    return 0;
}

static int add_kernel_option(struct options *o, const char *option, struct failure *f)
{
    size_t old = o->kernel_options ? strlen(o->kernel_options) : 0;
    char *all = realloc(o->kernel_options, old + strlen(option) + 2);
    if (!all)
        return failure_set(f, -ENOMEM, "out of memory");
    o->kernel_options = all;
    if (old)
        all[old++] = ',';
    memcpy(all + old, option, strlen(option) + 1);
    return 0;
}

struct nearest {
    const char *name;
    size_t edits;
};

static void consider(struct nearest *n, const char *word, const char *name)
{
    size_t edits = word_distance(word, name);
    /* A third of the name changed is no likeness: most options are short. */
    if (edits < n->edits && edits * 3 <= strlen(name))
        *n = (struct nearest){name, edits};
}

static int unknown_option(const char *option, struct failure *f)
{
    struct nearest n = {.edits = SIZE_MAX};
    size_t len = strcspn(option, "=");
    _cleanup_free_ char *word = strndup(option, len);
    if (!word)
        return failure_set(f, -ENOMEM, "out of memory");
    for (size_t i = 0; i < ARRAY_SIZE(valued); i++)
        consider(&n, word, valued[i]);
    if (n.edits == 0)
        return failure_set(f, -EINVAL, "option %s needs a value", option);
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        consider(&n, word, flags[i].name);
    consider(&n, word, "allow_other");
    if (n.edits == 0)
        return failure_set(f, -EINVAL, "option %s takes no value", n.name);
    return failure_set(f, -EINVAL, "unknown option \"%s\"%s%s%s; see berthfs(8)", option,
                       n.name ? ", did you mean " : "", n.name ? n.name : "", n.name ? "?" : "");
}

static int apply_option(struct options *o, const char *option, struct failure *f)
{
    const struct {
        const char *prefix;
        char **field;
    } strings[] = {
        {"url=", &o->url},
        {"service=", &o->service},
        {"services=", &o->services},
        {"config=", &o->config_file},
        {"token_file=", &o->token_file},
        {"ca_file=", &o->ca_file},
        {"cert_file=", &o->cert_file},
        {"key_file=", &o->key_file},
        {"workspace=", &o->workspace},
        {"log=", &o->log_file},
        {"prune=", &o->prune},
    };
    for (size_t i = 0; i < ARRAY_SIZE(strings); i++)
        if (starts_with(option, strings[i].prefix)) {
            const char *value = option + strlen(strings[i].prefix);
            if (!*value)
                return failure_set(f, -EINVAL, "option %s needs a value", option);
            return set_string(strings[i].field, value, f);
        }
    if (starts_with(option, "timeout="))
        return set_timeout(o, option + strlen("timeout="), f);
    if (starts_with(option, "owner="))
        return set_owner(o, option + strlen("owner="), f);
    if (starts_with(option, "locks="))
        return set_locks(o, option + strlen("locks="), f);
    if (starts_with(option, "cache="))
        return set_cache(o, option + strlen("cache="), f);
    if (starts_with(option, "cache_size="))
        return set_cache_size(o, option + strlen("cache_size="), f);
    if (starts_with(option, "disconnected="))
        return set_disconnected(o, option + strlen("disconnected="), f);
    if (starts_with(option, "credentials="))
        return set_credentials(o, option + strlen("credentials="), f);
    if (starts_with(option, "symlinks="))
        return set_symlinks(o, option + strlen("symlinks="), f);
    if (starts_with(option, "system_prefixes="))
        return set_system_prefixes(o, option + strlen("system_prefixes="), f);
    if (strcmp(option, "allow_other") == 0) {
        o->allow_other = true;
        return 0;
    }
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (strcmp(option, flags[i].name) == 0) {
            o->mount_flags &= ~flags[i].flag;
            o->mount_flags |= flags[i].off ? 0 : flags[i].flag;
            return 0;
        }
    for (size_t i = 0; i < ARRAY_SIZE(ignored); i++)
        if (strcmp(option, ignored[i]) == 0)
            return 0;
    if (starts_with(option, "x-") || starts_with(option, "X-") || starts_with(option, "comment=") ||
        starts_with(option, "user=") || starts_with(option, "uhelper=") ||
        starts_with(option, "helper="))
        return 0;
    for (size_t i = 0; i < ARRAY_SIZE(passed_on); i++)
        if (starts_with(option, passed_on[i]))
            return add_kernel_option(o, option, f);
    if (strcmp(option, "allow_root") == 0)
        return failure_set(f, -EINVAL, "allow_root is not supported; see allow_other");
    return unknown_option(option, f);
}

/* Options are separated by commas; "\," is a comma within one (exec: URLs have them). */
static int apply_options(struct options *o, const char *list, struct failure *f)
{
    _cleanup_free_ char *one = malloc(strlen(list) + 1);
    if (!one)
        return failure_set(f, -ENOMEM, "out of memory");
    while (*list) {
        size_t len = 0;
        for (; *list && *list != ','; list++) {
            if (*list == '\\' && list[1])
                list++;
            one[len++] = *list;
        }
        one[len] = '\0';
        if (*list)
            list++;
        int r = len ? apply_option(o, one, f) : 0;
        if (r < 0)
            return r;
    }
    return 0;
}

static int apply_switch(struct options *o, int c, bool helper, struct failure *f)
{
    switch (c) {
    case 'o':
        return apply_options(o, optarg, f);
    case 'w':
        return set_string(&o->workspace, optarg, f);
    case 'f':
        /* mount(8) means "fake" by it, everyone else "foreground". */
        if (helper)
            o->fake = true;
        else
            o->foreground = true;
        return 0;
    case 'h':
        o->help = true;
        return 0;
    case 'V':
        o->version = true;
        return 0;
    case 'r':
        o->mount_flags |= MS_RDONLY;
        return 0;
    case 's':
    case 'n':
    case 'v':
    case 'N':
    case 't':
        if (helper)
            return 0;
        break;
    case ':':
        return failure_set(f, -EINVAL, "-%c needs an argument", optopt);
    default:
        break;
    }
    if (c == '?' && optopt == 0)
        return failure_set(f, -EINVAL, "unknown option; see berthfs --help");
    return failure_set(f, -EINVAL, "unknown option -%c; see berthfs --help", c == '?' ? optopt : c);
}

/* fusermount3, which mounts for users who are not root, takes no other options than its own. */
static int check_ordinary_user(const struct options *o, struct failure *f)
{
    static const unsigned long root_flags = MS_STRICTATIME | MS_LAZYTIME;
    if (o->owner_server)
        return failure_set(f, -EPERM,
                           "owner=server shows the owners at the service, which only root "
                           "may ask for; leave it out to see the files as your own");
    for (size_t i = 0; i < ARRAY_SIZE(flags); i++)
        if (!flags[i].off && (o->mount_flags & flags[i].flag & root_flags))
            return failure_set(f, -EPERM, "only root may mount with the option %s; leave it out",
                               flags[i].name);
    if (o->kernel_options)
        return failure_set(f, -EPERM, "only root may mount with the option %s; leave it out",
                           o->kernel_options);
    return 0;
}

static int set_urls(struct options *o, const char *const *urls, size_t count, struct failure *f)
{
    for (size_t i = 0; i < count; i++)
        if (stream_url_check(urls[i], &(struct failure){0}) < 0)
            return failure_set(f, -EINVAL, "unexpected argument \"%s\": \"%s\" is no URL",
                               urls[count], urls[i]);
    o->urls = calloc(count, sizeof *o->urls);
    for (; o->urls && o->url_count < count; o->url_count++) {
        o->urls[o->url_count] = strdup(urls[o->url_count]);
        if (!o->urls[o->url_count])
            break;
    }
    return o->url_count == count ? 0 : failure_set(f, -ENOMEM, "out of memory");
}

static int check_joined(const struct options *o, struct failure *f)
{
    if (!options_are_joined(o))
        return 0;
    if (o->workspace)
        return failure_set(
            f, -EINVAL, "-w mounts one workspace, which is of one service: leave out the others");
    if (o->url || o->service || (o->services && o->url_count))
        return failure_set(f, -EINVAL,
                           "several services are either URLs or names of services=, and no url= or "
                           "service= besides");
    return 0;
}

int options_parse(int argc, char *const argv[], bool helper, struct options *ret,
                  struct failure *ret_failure)
{
    static const struct option long_options[] = {
        {"help", no_argument, NULL, 'h'},          {"version", no_argument, NULL, 'V'},
        {"foreground", no_argument, NULL, 'f'},    {"workspace", required_argument, NULL, 'w'},
        {"options", required_argument, NULL, 'o'}, {0},
    };
    struct options o __attribute__((cleanup(options_release))) = {
        .timeout_ms = OPTIONS_TIMEOUT_MS, .cache = true, .cache_size = DISK_SIZE_DEFAULT};
    _cleanup_free_ const char **positional = calloc((size_t)argc + 1, sizeof *positional);
    size_t count = 0;
    if (!positional)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    optind = 0; /* start anew, and forget an earlier call's state */
    for (;;) {
        int c = getopt_long(argc, argv, "-:fhVrsnvw:o:N:t:", long_options, NULL);
        if (c < 0)
            break;
        int r = 0;
        if (c == 1) {
            positional[count++] = optarg;
        } else {
            r = apply_switch(&o, c, helper, ret_failure);
        }
        if (r < 0)
            return r;
    }
    for (; optind < argc; optind++)
        positional[count++] = argv[optind];
    if (!o.help && !o.version) {
        if (count == 0 || (helper && count < 2))
            return failure_set(ret_failure, -EINVAL,
                               helper ? "expected SOURCE and MOUNTPOINT"
                                      : "expected MOUNTPOINT; see berthfs --help");
        if (count > 2 && helper)
            return failure_set(ret_failure, -EINVAL, "unexpected argument \"%s\"", positional[2]);
        int r = set_string(&o.mountpoint, positional[count - 1], ret_failure);
        if (r == 0 && count > 2)
            r = set_urls(&o, positional, count - 1, ret_failure);
        /* fstab must have something in the first field: "none" and "berth" mean the default. */
        if (r == 0 && count == 2 &&
            !(helper && (o.services || o.service || strcmp(positional[0], "none") == 0 ||
                         strcmp(positional[0], "berth") == 0)))
            r = set_string(&o.url, positional[0], ret_failure);
        if (r < 0)
            return r;
        r = check_joined(&o, ret_failure);
        if (r == 0)
            r = getuid() == 0 ? 0 : check_ordinary_user(&o, ret_failure);
        if (r == 0 && o.serve && !o.cache)
            r = failure_set(ret_failure, -EINVAL,
                            "disconnected=serve answers from what is kept, and cache=no keeps "
                            "nothing: leave out one of the two");
        if (r < 0)
            return r;
    }
    *ret = o;
    o = (struct options){0};
    return 0;
}

void options_release(struct options *o)
{
    char *const all[] = {o->mountpoint,      o->workspace, o->log_file,    o->kernel_options,
                         o->prune,           o->url,       o->config_file, o->token_file,
                         o->ca_file,         o->cert_file, o->key_file,    o->symlinks,
                         o->system_prefixes, o->service,   o->services};
    for (size_t i = 0; i < o->url_count; i++)
        free(o->urls[i]);
    free(o->urls);
    for (size_t i = 0; i < ARRAY_SIZE(all); i++)
        free(all[i]);
    *o = (struct options){0};
}

struct client_flags options_client_flags(const struct options *o)
{
    return (struct client_flags){
        .config_file = o->config_file,
        .alone = o->alone,
        .url = o->url,
        .service = o->service,
        .token_file = o->token_file,
        .ca_file = o->ca_file,
        .cert_file = o->cert_file,
        .key_file = o->key_file,
        .symlinks = o->symlinks,
        .system_prefixes = o->system_prefixes,
    };
}
