/* The programs that belong together, and the mounts of this machine. */
#include <stdlib.h>
#include <string.h>

#include "base/cleanup.h"
#include "cli/doctor.h"
#include "cli/mounts.h"
#include "cli/programs.h"

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
}

static void check_berth_mount(struct doctor *d, const struct mount_row *row)
{
    json_t *info;
    struct failure failure;
    enum mount_state state = mount_state_read(row, &info, &failure);
    json_decref(info);
    switch (state) {
    case MOUNT_CONNECTED:
        doctor_ok(d, "the mount at %s is connected to %s", row->point, row->source);
        break;
    case MOUNT_DISCONNECTED:
        doctor_problem(d,
                       "is its service running? It reconnects by itself when it can; until then, "
                       "programs in the mount get errors",
                       "the mount at %s has lost its connection to %s", row->point, row->source);
        break;
    case MOUNT_DEAD: {
        char advice[512];
        (void)snprintf(advice, sizeof advice,
                       "take it down with `berth umount %s`, then mount again", row->point);
        doctor_problem(d, advice,
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
        doctor_problem(d, advice, "the mount at %s does not answer", row->point);
        break;
    }
    case MOUNT_FOREIGN:
    case MOUNT_UNKNOWN:
        doctor_ok(d, "%s", failure.text);
        break;
    }
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
        doctor_ok(d, "nothing of Berth is mounted; `berth mount DIRECTORY` does that");
}
