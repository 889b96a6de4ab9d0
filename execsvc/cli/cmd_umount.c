#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>

#include "base/clock.h"
#include "cli/cli.h"
#include "cli/mounts.h"
#include "cli/programs.h"
#include "cli/users.h"

/* Whatever asks a mount something keeps it busy until it is answered: `berth status`, df, a prompt.
 * So that is no reason to fail, unless it lasts. */
#define BUSY_NS (NSEC_PER_SEC / 2)
#define BUSY_PAUSE_NS (20 * NSEC_PER_MSEC)

const char umount_usage[] =
    "usage: berth umount [OPTION] MOUNTPOINT…\n"
    "Takes Berth mounts down, dead ones too. The workspaces stay as they are. If a program\n"
    "uses the mount, it is left in place, and you are told which.\n"
    "\n"
    "  -l, --lazy   now, even if it is in use: programs keep what they have open\n"
    "\n"
    "Examples\n"
    "  berth umount ~/berth\n"
    "  berth umount -l ~/berth\n";

static const struct option options[] = {
    {"lazy", no_argument, NULL, 'l'},
    {"help", no_argument, NULL, 'h'},
    {0},
};

static void explain_busy(const struct cli *cli, const struct mount_table *table, const char *point)
{
    size_t len = strlen(point);
    for (size_t i = 0; i < table->count; i++) {
        const char *other = table->rows[i].point;
        if (strncmp(other, point, len) == 0 && other[len] == '/') {
            cli_error(cli, "%s is in use: %s is mounted inside it", point, other);
            return;
        }
    }
    _cleanup_mount_users_ struct mount_users users = {0};
    int r = mount_users_find(point, &users);
    if (r < 0 || users.count == 0)
        cli_error(cli, "%s is in use%s; -l takes it down all the same", point,
                  users.unseen ? " by a program of another user (root can see which)" : "");
    else
        cli_error(cli, "%s is in use by %.*s%s; end them, or take it down all the same with -l",
                  point, (int)users.text.len, (const char *)users.text.data,
                  users.count > MOUNT_USERS_MAX ? "; and others" : "");
}

/* The set-uid helper, for who is not root. *ret_text has what it said when it failed. */
static int unmount_by_helper(char *point, bool lazy, struct buffer *ret_text)
{
    static char name[] = "fusermount3", dash_u[] = "-u", dash_z[] = "-z", dashes[] = "--";
    _cleanup_free_ char *path = NULL;
    char *argv[] = {
        name, dash_u, lazy ? dash_z : dashes, lazy ? dashes : point, lazy ? point : NULL, NULL};
    int r = program_find_system(name, &path);
    if (r == 0)
        r = program_run(path, argv, ret_text);
    if (r <= 0)
        return r;
    r = buffer_append_u8(ret_text, 0);
    if (r < 0)
        return r;
    ret_text->data[strcspn((char *)ret_text->data, "\n")] = 0;
    return strstr((char *)ret_text->data, strerror(EBUSY)) ? -EBUSY : -EPERM;
}

static int try_unmount(char *point, bool lazy, struct buffer *ret_text)
{
    int r = umount2(point, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) < 0 ? -errno : 0;
    return r == -EPERM ? unmount_by_helper(point, lazy, ret_text) : r;
}

static int unmount(const struct cli *cli, const struct mount_table *table, char *point, bool lazy)
{
    _cleanup_buffer_ struct buffer text = {0};
    uint64_t end = clock_monotonic_ns() + BUSY_NS;
    int r = try_unmount(point, lazy, &text);
    while (r == -EBUSY && clock_monotonic_ns() < end) {
        const struct timespec pause = {.tv_nsec = BUSY_PAUSE_NS};
        (void)nanosleep(&pause, NULL);
        buffer_release(&text);
        r = try_unmount(point, lazy, &text);
    }
    if (r == -EBUSY)
        explain_busy(cli, table, point);
    else if (r == -ENOENT)
        cli_error(cli, "%s: fusermount3 is missing; install fuse3", point);
    else if (r < 0)
        cli_error(cli, "%s: %s", point, text.len ? (char *)text.data : strerror(-r));
    return r;
}

/* What is wrong with a place where no Berth mount is. */
static void explain_place(const struct cli *cli, const char *path, const char *point,
                          const struct mount_row *row)
{
    if (row) {
        cli_error(cli, "%s is not a Berth mount but one of type %s", path, row->type);
        return;
    }
    _cleanup_here_ struct here here = {0};
    struct failure failure;
    if (here_find(point, &here, &failure) == 0)
        cli_error(cli, "%s is inside the mount at %s; unmount that: berth umount %s", path,
                  here.mountpoint, here.mountpoint);
    else
        cli_error(cli, "%s is not a mountpoint; `berth status` lists the mounts", path);
}

static int read_table(const struct cli *cli, struct mount_table *ret)
{
    int r = mount_table_read(ret);
    if (r < 0)
        cli_error(cli, "/proc/self/mountinfo: %s", strerror(-r));
    return r;
}

/* What the user named, as a place; NULL, and said, when it is none. */
static char *resolve(const struct cli *cli, const char *path)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    char *point = NULL;
    struct failure failure;
    if (read_table(cli, &table) < 0)
        return NULL;
    if (mount_point_resolve(&table, path, &point, &failure) < 0)
        cli_error(cli, "%s", failure.text);
    return point;
}

static int unmount_one(const struct cli *cli, const char *path, char *point, bool lazy)
{
    _cleanup_mount_table_ struct mount_table table = {0};
    int r = read_table(cli, &table);
    if (r < 0)
        return r;
    const struct mount_row *row = mount_table_find(&table, point);
    if (!row || !mount_row_is_berth(row)) {
        explain_place(cli, path, point, row);
        return -EINVAL;
    }
    return unmount(cli, &table, point, lazy);
}

/* All places are resolved before the working directory is left, which relative paths are
 * relative to, and which must not be what keeps a mount busy. */
static int unmount_all(const struct cli *cli, size_t count, char *const *paths, bool lazy,
                       char **points)
{
    int status = CLI_OK;
    for (size_t i = 0; i < count; i++)
        points[i] = resolve(cli, paths[i]);
    if (chdir("/") < 0) {
        cli_error(cli, "/: %s", strerror(errno));
        return CLI_FAILED;
    }
    for (size_t i = 0; i < count; i++)
        if (!points[i] || unmount_one(cli, paths[i], points[i], lazy) < 0)
            status = CLI_FAILED;
    return status;
}

int cmd_umount(struct cli *cli, int argc, char **argv)
{
    bool lazy = false;
    int option;
    opterr = 0;
    while ((option = getopt_long(argc, argv, ":lh", options, NULL)) != -1) {
        if (option == 'l')
            lazy = true;
        else if (option == 'h')
            return cli_show_help(cli);
        else
            return cli_option_error(cli, option, argv);
    }
    if (optind == argc)
        return cli_usage_error(cli, "which mountpoint?");
    size_t count = (size_t)(argc - optind);
    char **points = calloc(count, sizeof *points);
    if (!points) {
        cli_error(cli, "%s", strerror(ENOMEM));
        return CLI_FAILED;
    }
    int status = unmount_all(cli, count, argv + optind, lazy, points);
    for (size_t i = 0; i < count; i++)
        free(points[i]);
    free(points);
    return status;
}
