#include "canary.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/xattr.h>
#include <unistd.h>

void canaries_open(struct canaries *c)
{
    *c = (struct canaries){.inotify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC)};
    assert_true(c->inotify >= 0);
}

void canaries_close(struct canaries *c)
{
    (void)close(c->inotify);
}

void canary_watch(struct canaries *c, const char *path, uint32_t events)
{
    assert_true(inotify_add_watch(c->inotify, path, events | IN_DONT_FOLLOW) >= 0);
}

/* Its ctime stands for owner, mode, links and attributes too. */
static void note(struct canaries *c, const char *path)
{
    assert_true(c->count < CANARIES_MAX);
    struct canary *new = &c->all[c->count++];
    (void)snprintf(new->path, sizeof new->path, "%s", path);
    assert_int_equal(lstat(path, &new->st), 0);
    canary_watch(c, path, IN_ALL_EVENTS);
}

void canary_make_file(struct canaries *c, const char *directory, const char *name)
{
    char path[256], text[CANARY_SIZE] = CANARY_TEXT;
    (void)snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, sizeof text), sizeof text);
    if (fsetxattr(fd, "user.canary", CANARY_TEXT, strlen(CANARY_TEXT), 0) < 0)
        assert_int_equal(errno, EOPNOTSUPP);
    assert_int_equal(close(fd), 0);
    note(c, path);
}

void canary_note_directory(struct canaries *c, const char *path)
{
    note(c, path);
}

void canaries_check_quiet(struct canaries *c)
{
    _Alignas(struct inotify_event) char buffer[4096];
    ssize_t n = read(c->inotify, buffer, sizeof buffer);
    if (n > 0) {
        const struct inotify_event *event = (const void *)buffer;
        fail_msg("event 0x%x on watch %d, name '%s'", event->mask, event->wd,
                 event->len ? event->name : "");
    }
    assert_true(n < 0 && errno == EAGAIN);
}

void canaries_check_told(struct canaries *c, const char *path)
{
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    assert_true(fd >= 0);
    (void)close(fd);
    char buffer[4096];
    assert_true(read(c->inotify, buffer, sizeof buffer) > 0);
}

static void assert_same_time(const struct timespec *a, const struct timespec *b)
{
    assert_true(a->tv_sec == b->tv_sec && a->tv_nsec == b->tv_nsec);
}

void canaries_check(struct canaries *c)
{
    canaries_check_quiet(c);
    for (size_t i = 0; i < c->count; i++) {
        const struct canary *canary = &c->all[i];
        struct stat now;
        assert_int_equal(lstat(canary->path, &now), 0);
        assert_int_equal(now.st_ino, canary->st.st_ino);
        assert_int_equal(now.st_mode, canary->st.st_mode);
        assert_int_equal(now.st_nlink, canary->st.st_nlink);
        assert_int_equal(now.st_size, canary->st.st_size);
        assert_same_time(&now.st_atim, &canary->st.st_atim);
        assert_same_time(&now.st_mtim, &canary->st.st_mtim);
        assert_same_time(&now.st_ctim, &canary->st.st_ctim);
    }
    canaries_check_told(c, c->all[0].path);
}
