/* Without memory a name is not half made: the client that got an error finds nothing there. */
#include "store_fixture.h"

#include <stdio.h>

#include "failing_malloc.h"

#define RW (WIRE_OPEN_READ | WIRE_OPEN_WRITE)

/* More allocations than any of these requests makes. */
#define ALLOCATIONS 40

static void test_make(void **state)
{
    struct fixture *f = *state;
    make_file(f, "file", "");
    uint64_t file = (uint64_t)t_lookup(f, f->demo, "file");
    for (int kind = 0; kind < 5; kind++) {
        unsigned failed = 0;
        for (size_t i = 1; i <= ALLOCATIONS; i++) {
            char text[32];
            (void)snprintf(text, sizeof text, "made%d-%zu", kind, i);
            struct bytes name = bytes_of_string(text);
            const struct wire_message requests[] = {
                {.type = WIRE_MKDIR, .mkdir = {.parent = f->demo, .mode = 0755, .name = name}},
                {.type = WIRE_SYMLINK,
                 .symlink = {.parent = f->demo, .name = name, .target = bytes_of_string("x")}},
                {.type = WIRE_MKNOD,
                 .mknod = {.parent = f->demo, .mode = S_IFREG | 0644, .name = name}},
                {.type = WIRE_LINK, .link = {.node = file, .parent = f->demo, .name = name}},
                {.type = WIRE_CREATE,
                 .create = {.parent = f->demo, .flags = RW, .mode = 0644, .name = name}},
            };
            drop_descriptors(f);
            malloc_fail_at(i, false);
            int r = store_handle(f->session, &requests[kind], &f->reply);
            malloc_fail_at(0, false);
            if (r == 0)
                continue;
            failed++;
            assert_int_equal(r, -ENOMEM);
            assert_false(exists(f, text));
        }
        assert_true(failed > 0);
    }
}

int main(int argc, char **argv)
{
    fixture_world(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_make, fixture_setup, fixture_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
