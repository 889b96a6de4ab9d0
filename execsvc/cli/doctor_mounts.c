/* The programs that belong together, and the mounts of this machine. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/doctor.h"
#include "cli/mounts.h"
#include "cli/programs.h"
#include "stream/url.h"

/* Only mount(8) needs it, and it looks in this one place. */
#define MOUNT_HELPER "/sbin/mount.fuse.berth"

static void check_helper(struct doctor *d, const char *berthfs)
{
    if (access(MOUNT_HELPER, X_OK) == 0) {
        doctor_ok(d, MOUNT_HELPER " is there, for mount(8) and fstab");
        return;
    }
    _cleanup_free_ char *advice = NULL;
    if (asprintf(&advice, "if you want that, as root: ln -s %s " MOUNT_HELPER, berthfs) < 0)
        advice = NULL;
    doctor_note(d, advice,
                MOUNT_HELPER " is missing, so `mount -t fuse.berth` and fstab do not work");
}

void doctor_check_programs(struct doctor *d)
{
    _cleanup_free_ char *path = NULL;
    _cleanup_buffer_ struct buffer text = {0};
    static char name[] = "berthfs", option[] = "-V";
    char *argv[] = {name, option, NULL};
    if (program_find(name, &path) < 0) {
        doctor_problem(d, "install it beside berth, or put its directory into PATH",
                       "berthfs, which mounts, is not found");
        return;
    }
    int r = program_run(path, argv, &text);
    if (r != 0) {
        doctor_problem(d, "see what it says when you run it", "%s cannot be run (%s)", path,
                       r < 0 ? strerror(-r) : "it failed");
        return;
    }
    size_t len = text.len;
    while (len > 0 && text.data[len - 1] == '\n')
        len--;
    if (memmem(text.data, len, BERTH_VERSION, strlen(BERTH_VERSION)))
        doctor_ok(d, "%s is of this version, " BERTH_VERSION, path);
    else
        doctor_warning(d, "install programs of one version", "%s says %.*s; this is berth %s", path,
                       (int)len, (const char *)text.data, BERTH_VERSION);
    check_helper(d, path);
}

typedef void report_fn(struct doctor *d, const char *advice, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A mount that could not be asked. */
static void explain_unknown(struct doctor *d, report_fn *say, const struct mount_row *row,
                            const struct failure *failure)
{
    _cleanup_free_ char *advice = NULL;
    if (asprintf(&advice, "take it down with `berth umount %s`", row->point) < 0)
        advice = NULL;
    if (failure->error == -ESTALE)
        say(d, advice, "the mount at %s shows a workspace that has been removed", row->point);
    else if (failure->error == -EACCES || failure->error == -ENODATA)
        doctor_note(d, NULL, "%s", failure->text);
    else
        say(d, "its log says more: syslog, or the file of its option log=", "%s", failure->text);
}

/* Of the service that is looked at, and the caller's own. Others are told of, and no fault of it.
 */
static bool is_of_service(const struct doctor *d, const struct mount_row *row)
{
    struct failure failure;
    uid_t user;
    if (mount_row_user(row, &user) == 0 && user != geteuid())
        return false;
    return !d->cli->settings_loaded || strcmp(row->source, d->cli->settings.url) == 0 ||
           stream_url_check(row->source, &failure) < 0;
}

/* Of a mount of several services, those that cannot be reached; places are connected when used. */
static void check_members(struct doctor *d, report_fn *say, const struct mount_row *row,
                          const json_t *members)
{
    size_t i;
    json_t *member;
    json_array_foreach(members, i, member)
    {
        const char *name = json_string_value(json_object_get(member, "name"));
        const char *state = json_string_value(json_object_get(member, "state"));
        const char *why = json_string_value(json_object_get(member, "why"));
        if (!name || !state || strcmp(state, "connected") == 0 || strcmp(state, "idle") == 0)
            continue;
        say(d,
            "is it running? Its workspaces are there when it can be reached; `berth status` has "
            "more",
            "the mount at %s: the service %s is %s%s%s", row->point, name, state, why ? ": " : "",
            why ? why : "");
    }
}

static void check_berth_mount(struct doctor *d, const struct mount_row *row)
{
    json_t *info;
    struct failure failure;
    enum mount_state state = mount_state_read(row, &info, &failure);
    bool serving = json_is_true(json_object_get(json_object_get(info, "stats"), "serving"));
    report_fn *say = is_of_service(d, row) ? doctor_problem : doctor_note;
    switch (state) {
    case MOUNT_CONNECTED:
        doctor_ok(d, "the mount at %s is connected to %s", row->point, row->source);
        check_members(d, say == doctor_problem ? doctor_warning : doctor_note, row,
                      json_object_get(info, "members"));
        break;
    case MOUNT_DISCONNECTED:
        say(d,
            serving ? "is its service running? It reconnects by itself when it can; "
                      "until then, programs in the mount see what was known before, and "
                      "get errors for the rest"
                    : "is its service running? It reconnects by itself when it can; "
                      "until then, programs in the mount get errors",
            "the mount at %s has lost its connection to %s", row->point, row->source);
        break;
    case MOUNT_DEAD: {
        char advice[512];
        (void)snprintf(advice, sizeof advice,
                       "take it down with `berth umount %s`, then mount again", row->point);
        say(d, advice,
            "the mount at %s is dead (\"Transport endpoint is not connected\"): its "
            "berthfs has ended",
            row->point);
        break;
    }
    case MOUNT_SILENT: {
        char advice[512];
        (void)snprintf(advice, sizeof advice,
                       "is its berthfs stopped? `berth umount -l %s` takes it down; as root, "
                       "`echo 1 > /sys/fs/fuse/connections/%u/abort` frees programs stuck in it",
                       row->point, row->minor);
        say(d, advice, "the mount at %s does not answer", row->point);
        break;
    }
    case MOUNT_FOREIGN:
        doctor_note(d, NULL, "%s", failure.text);
        break;
    case MOUNT_UNKNOWN:
        explain_unknown(d, say, row, &failure);
        break;
    }
    json_decref(info);
}

void doctor_check_mounts(struct doctor *d)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    size_t count = 0;
    int r = mount_table_read(&table);
    if (r < 0) {
        doctor_problem(d, "/proc must be mounted", "/proc/self/mountinfo: %s", strerror(-r));
        return;
    }
    for (size_t i = 0; i < table.count; i++) {
        if (!mount_row_is_berth(&table.rows[i]) || strcmp(table.rows[i].root, "/") != 0)
            continue;
        check_berth_mount(d, &table.rows[i]);
        count++;
    }
    if (count == 0)
        doctor_note(d, NULL, "nothing of Berth is mounted; `berth mount DIRECTORY` does that");
}
