/* When the driver stays awake for the next request, and when it does not. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "vigil.h"

#define US UINT64_C(1000)
#define LOOK (2 * US)        /* a turn of the loop */
#define NEVER (1000000 * US) /* long before the first request there was none */

/* A driver whose requests take 2 us each, on a processor with an idle one beside it. */
struct scene {
    struct vigil vigil;
    uint64_t now;
    uint64_t awake; /* nanoseconds of looking in vain */
    unsigned sleeps;
};

static void handle(struct scene *s, bool answered)
{
    vigil_taken(&s->vigil, s->now);
    s->now += 2 * US;
    vigil_handled(&s->vigil, s->now, answered);
}

/* The next request is there `gap` after the last was handled; who wakes the driver waits for
 * `waking`. */
static void next(struct scene *s, uint64_t gap, uint64_t waking)
{
    uint64_t due = s->now + gap;
    while (s->now < due) {
        if (!vigil_goes_on(&s->vigil, s->now)) {
            s->sleeps++;
            s->now = due + waking;
            break;
        }
        s->now += LOOK;
        s->awake += LOOK;
    }
    handle(s, true);
}

/* One processor alone: whoever asks goes on when the driver sleeps. */
static void next_behind(struct scene *s)
{
    for (int i = 0; i < 1000 && vigil_goes_on(&s->vigil, s->now); i++) {
        s->now += LOOK;
        s->awake += LOOK;
    }
    s->sleeps++;
    s->now += 3 * US;
    handle(s, true);
}

static void test_it_stays_awake_while_requests_come(void **state)
{
    struct scene s = {.now = NEVER};
    handle(&s, true);
    for (int i = 0; i < 1000; i++)
        next(&s, 5 * US, 30 * US);
    assert_in_range(s.sleeps, 1, 4);
}

static void test_it_sleeps_when_they_end(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 100; i++)
        next(&s, 5 * US, 30 * US);
    uint64_t ended = s.now;
    while (s.now - ended < 100 * VIGIL_NS && vigil_goes_on(&s.vigil, s.now))
        s.now += LOOK;
    assert_in_range(s.now - ended, VIGIL_NS, VIGIL_NS + LOOK);
    assert_false(vigil_goes_on(&s.vigil, s.now));
}

static void test_requests_now_and_then_are_slept_for(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 1000; i++)
        next(&s, 200 * US, 30 * US);
    assert_int_equal(s.awake, 0);
    assert_int_equal(s.sleeps, 1000);
}

static void test_it_gives_up_when_they_become_rare(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 100; i++)
        next(&s, 5 * US, 30 * US);
    s.awake = 0;
    for (int i = 0; i < 1000; i++)
        next(&s, 100 * US, 30 * US);
    assert_in_range(s.awake, VIGIL_NS, 8 * (VIGIL_NS + LOOK));
}

static void test_a_few_now_and_then_are_slept_for(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 1000; i++)
        next(&s, i % 3 ? 5 * US : 200 * US, 30 * US);
    assert_int_equal(s.awake, 0);
}

static void test_a_file_now_and_then_is_worth_it(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 1000; i++)
        next(&s, i % 4 ? 5 * US : 100 * US, 30 * US);
    /* Once for each file, and not between what belongs to it. */
    assert_in_range(s.sleeps, 250, 260);
}

static void test_who_waits_for_the_processor_gets_it(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 100000; i++)
        next_behind(&s);
    /* Less than a hundredth of the time. */
    assert_true(s.awake < s.now / 100);
    assert_true(s.awake > 0);
    /* And when there is another processor again, that is found out. */
    for (int i = 0; i < 10000; i++)
        next(&s, 5 * US, 30 * US);
    unsigned before = s.sleeps;
    for (int i = 0; i < 1000; i++)
        next(&s, 5 * US, 30 * US);
    assert_int_equal(s.sleeps, before);
    /* From then on, one that seems to have waited for it makes little difference. */
    next_behind(&s);
    for (int i = 0; i < 1000; i++)
        next(&s, 5 * US, 30 * US);
    assert_in_range(s.sleeps, before + 1, before + 50);
}

static void test_what_the_service_answers_is_slept_for(void **state)
{
    struct scene s = {.now = NEVER};
    for (int i = 0; i < 100; i++)
        next(&s, 5 * US, 30 * US);
    handle(&s, false);
    assert_false(vigil_goes_on(&s.vigil, s.now));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_it_stays_awake_while_requests_come),
        cmocka_unit_test(test_it_sleeps_when_they_end),
        cmocka_unit_test(test_requests_now_and_then_are_slept_for),
        cmocka_unit_test(test_it_gives_up_when_they_become_rare),
        cmocka_unit_test(test_a_few_now_and_then_are_slept_for),
        cmocka_unit_test(test_a_file_now_and_then_is_worth_it),
        cmocka_unit_test(test_who_waits_for_the_processor_gets_it),
        cmocka_unit_test(test_what_the_service_answers_is_slept_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
