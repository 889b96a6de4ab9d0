/* What the proxy's process can still read when it has given up the rest: what names are resolved
 * with, and no other file of /etc. */
#include "unit.h"

#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "base/cleanup.h"
#include "confine/landlock.h"
#include "confine/privileges.h"
#include "egress/confine.h"
#include "egress/settings.h"

/* A machine may lack some. */
static const char *const readable[] = {"/etc/hosts", "/etc/resolv.conf", "/etc/nsswitch.conf"};
static const char *const others[] = {"/etc/passwd", "/etc/group",   "/etc/profile", "/etc",
                                     "/etc/ssl",    "/usr/bin/env", "/usr",         "/tmp"};

static int error_of(const char *path)
{
    _cleanup_close_ int fd = open(path, O_RDONLY | O_CLOEXEC);
    return fd < 0 ? errno : 0;
}

/* In a child. */
#define expect(condition) \
    do {                  \
        if (!(condition)) \
            _exit(1);     \
    } while (0)

static void in_child(void (*body)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        body();
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
}

static void look(void)
{
    int before[ARRAY_SIZE(readable)];
    struct addrinfo *found;
    for (size_t i = 0; i < ARRAY_SIZE(readable); i++)
        before[i] = error_of(readable[i]);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        expect(error_of(others[i]) == 0);
    expect(privileges_gain_none() == 0 && egress_confine_files() == 0);
    for (size_t i = 0; i < ARRAY_SIZE(readable); i++)
        expect(error_of(readable[i]) == before[i]);
    for (size_t i = 0; i < ARRAY_SIZE(others); i++)
        expect(error_of(others[i]) == EACCES);
    expect(open("/etc/hosts", O_WRONLY | O_CLOEXEC) < 0 && errno == EACCES);
    expect(getaddrinfo("localhost", NULL, NULL, &found) == 0);
    freeaddrinfo(found);
}

static void test_what_can_be_read(void **state)
{
    assert_true(landlock_abi() > 0);
    in_child(look);
}

/* A set that admits nothing stands for a file that was put in the place of another. */
static void lose(void)
{
    const struct landlock_options none = {0};
    struct settings before;
    int set;
    settings_look(&before);
    expect(!settings_lost(&before));
    expect(privileges_gain_none() == 0 && landlock_new(&none, &set) == 0);
    expect(landlock_enter(set) == 0);
    expect(settings_lost(&before));
    settings_look(&before);
    expect(!settings_lost(&before)); /* it never could: it does not begin anew for ever */
}

static void test_settings_that_were_replaced(void **state)
{
    in_child(lose);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_can_be_read),
        cmocka_unit_test(test_settings_that_were_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
