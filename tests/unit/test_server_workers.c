/* The order that jobs keep, and that no lane holds up another. The loop and the workers are
 * real; jobs block on a gate until the test opens it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <time.h>

#include "base/cleanup.h"
#include "server/workers.h"

#define WAIT_S 20
#define WORKER_COUNT 4

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
};

/* What one job did, by position in a trace shared by all. */
struct step {
    struct gate *gate;  /* or NULL */
    atomic_uint *clock; /* counts starts and ends */
    unsigned started, ended;
    atomic_bool running;
};

struct fixture {
    struct event_base *base;
    struct workers *workers;
    struct lane *lane;
    atomic_uint clock;
    unsigned done, finished;
    atomic_uint finishing;
};

static void gate_init(struct gate *g)
{
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    g->open = false;
}

static void gate_open(struct gate *g)
{
    pthread_mutex_lock(&g->lock);
    g->open = true;
    pthread_cond_broadcast(&g->changed);
    pthread_mutex_unlock(&g->lock);
}

static void gate_pass(struct gate *g)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += WAIT_S;
    pthread_mutex_lock(&g->lock);
    while (!g->open && pthread_cond_timedwait(&g->changed, &g->lock, &deadline) == 0)
        ;
    pthread_mutex_unlock(&g->lock);
}

static void on_run(void *context, struct job *job)
{
    struct step *step = job->owner;
    step->started = atomic_fetch_add(step->clock, 1) + 1;
    step->running = true;
    if (step->gate)
        gate_pass(step->gate);
    step->ended = atomic_fetch_add(step->clock, 1) + 1;
    job->result = 7;
}

static void on_done(void *context, struct job *job)
{
    struct fixture *f = context;
    assert_int_equal(job->result, 7);
    f->done++;
    job_free(job);
}

static void on_finish(void *context)
{
    struct fixture *f = context;
    f->finishing++;
}

static void on_finished(void *context)
{
    struct fixture *f = context;
    assert_true(f->finishing > f->finished);
    f->finished++;
}

static struct lane *new_lane(struct fixture *f)
{
    const struct lane_events events = {
        .run = on_run, .done = on_done, .finish = on_finish, .finished = on_finished, .context = f};
    struct lane *lane;
    assert_int_equal(lane_new(f->workers, &events, &lane), 0);
    return lane;
}

static int setup(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    f->base = event_base_new();
    assert_int_equal(workers_new(f->base, WORKER_COUNT, &f->workers), 0);
    assert_int_equal(workers_count(f->workers), WORKER_COUNT);
    f->lane = new_lane(f);
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    if (f->lane)
        lane_close(f->lane);
    workers_free(f->workers);
    event_base_free(f->base);
    free(f);
    return 0;
}

static void submit(struct fixture *f, struct lane *lane, struct step *step, enum job_order order,
                   uint64_t key)
{
    struct job *job = calloc(1, sizeof *job);
    job->owner = step;
    job->order = order;
    job->key = key;
    step->clock = &f->clock;
    assert_int_equal(lane_submit(lane, job), 0);
}

static void wait_done(struct fixture *f, unsigned count)
{
    time_t deadline = time(NULL) + WAIT_S;
    while (f->done < count) {
        assert_true(time(NULL) < deadline);
        struct timeval tick = {.tv_usec = 10000};
        event_base_loopexit(f->base, &tick);
        event_base_dispatch(f->base);
    }
}

static void wait_running(struct step *step)
{
    time_t deadline = time(NULL) + WAIT_S;
    while (!step->running) {
        assert_true(time(NULL) < deadline);
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    }
}

/* Long enough for a job that may run to have begun: only ever makes a test pass wrongly. */
static void settle(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 30000000}, NULL);
}

static void test_exclusive_keeps_order(void **state)
{
    struct fixture *f = *state;
    static struct step steps[500];
    memset(steps, 0, sizeof steps);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        submit(f, f->lane, &steps[i], JOB_EXCLUSIVE, i % 3);
    wait_done(f, ARRAY_SIZE(steps));
    for (size_t i = 3; i < ARRAY_SIZE(steps); i++)
        assert_true(steps[i].started > steps[i - 3].ended);
}

static void test_keys_do_not_wait_for_each_other(void **state)
{
    struct fixture *f = *state;
    struct gate gate;
    struct step slow = {.gate = &gate}, other = {0}, same = {0};
    gate_init(&gate);
    submit(f, f->lane, &slow, JOB_EXCLUSIVE, 1);
    wait_running(&slow);
    submit(f, f->lane, &same, JOB_EXCLUSIVE, 1);
    submit(f, f->lane, &other, JOB_EXCLUSIVE, 2);
    wait_done(f, 1);
    assert_true(other.ended > 0);
    assert_false(same.running);
    gate_open(&gate);
    wait_done(f, 3);
    assert_true(same.started > slow.ended);
}

static void test_shared_run_together_between_exclusives(void **state)
{
    struct fixture *f = *state;
    struct gate first_gate, read_gate;
    struct step write = {.gate = &first_gate}, last = {0};
    struct step reads[2] = {{.gate = &read_gate}, {.gate = &read_gate}};
    struct step late = {0};
    gate_init(&first_gate);
    gate_init(&read_gate);
    submit(f, f->lane, &write, JOB_EXCLUSIVE, 9);
    submit(f, f->lane, &reads[0], JOB_SHARED, 9);
    submit(f, f->lane, &reads[1], JOB_SHARED, 9);
    submit(f, f->lane, &last, JOB_EXCLUSIVE, 9);
    submit(f, f->lane, &late, JOB_SHARED, 9);
    wait_running(&write);
    settle();
    assert_false(reads[0].running || reads[1].running);
    gate_open(&first_gate);
    wait_running(&reads[0]); /* both at once: neither ends before the gate opens */
    wait_running(&reads[1]);
    settle();
    assert_false(last.running || late.running);
    gate_open(&read_gate);
    wait_done(f, 5);
    assert_true(last.started > reads[0].ended && last.started > reads[1].ended);
    assert_true(late.started > last.ended);
}

static void test_barrier_waits_for_all_before_and_for_none_after(void **state)
{
    struct fixture *f = *state;
    struct gate gate;
    struct step slow = {.gate = &gate}, barriers[2] = {0}, after = {0};
    gate_init(&gate);
    submit(f, f->lane, &slow, JOB_FREE, 0);
    submit(f, f->lane, &barriers[0], JOB_BARRIER, 0);
    submit(f, f->lane, &barriers[1], JOB_BARRIER, 0);
    submit(f, f->lane, &after, JOB_FREE, 0);
    wait_done(f, 1); /* `after` */
    settle();
    assert_true(after.ended > 0);
    assert_false(barriers[0].running || barriers[1].running);
    gate_open(&gate);
    wait_done(f, 4);
    assert_true(barriers[0].started > slow.ended);
    assert_true(barriers[1].started > barriers[0].ended);
}

static void test_a_blocked_lane_does_not_hold_up_another(void **state)
{
    struct fixture *f = *state;
    struct gate gate;
    static struct step blocked[20];
    struct step other[5] = {0};
    memset(blocked, 0, sizeof blocked);
    gate_init(&gate);
    for (size_t i = 0; i < ARRAY_SIZE(blocked); i++) {
        blocked[i].gate = &gate;
        submit(f, f->lane, &blocked[i], JOB_FREE, 0);
    }
    wait_running(&blocked[0]);
    struct lane *second = new_lane(f);
    for (size_t i = 0; i < ARRAY_SIZE(other); i++)
        submit(f, second, &other[i], JOB_FREE, 0);
    wait_done(f, ARRAY_SIZE(other));
    unsigned running = 0;
    for (size_t i = 0; i < ARRAY_SIZE(blocked); i++)
        running += blocked[i].running;
    assert_int_equal(running, WORKER_COUNT - 1);
    gate_open(&gate);
    wait_done(f, ARRAY_SIZE(other) + ARRAY_SIZE(blocked));
    lane_close(second);
}

static void test_closing_finishes_what_was_submitted(void **state)
{
    struct fixture *f = *state;
    struct gate gate;
    struct step steps[10] = {0};
    gate_init(&gate);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++) {
        steps[i].gate = &gate;
        submit(f, f->lane, &steps[i], i % 2 ? JOB_EXCLUSIVE : JOB_BARRIER, 1);
    }
    lane_close(f->lane);
    f->lane = NULL;
    settle();
    assert_int_equal(f->finishing, 0);
    gate_open(&gate);
    wait_done(f, ARRAY_SIZE(steps));
    time_t deadline = time(NULL) + WAIT_S;
    while (f->finished == 0) {
        assert_true(time(NULL) < deadline);
        event_base_loop(f->base, EVLOOP_ONCE);
    }
    assert_int_equal(f->finished, 1);
}

static void test_freeing_runs_everything(void **state)
{
    struct fixture *f = *state;
    static struct step steps[300];
    memset(steps, 0, sizeof steps);
    for (size_t i = 0; i < ARRAY_SIZE(steps); i++)
        submit(f, f->lane, &steps[i], (enum job_order)(i % 4), i % 5);
    lane_close(f->lane);
    f->lane = NULL;
    workers_free(f->workers);
    f->workers = NULL;
    assert_int_equal(f->done, ARRAY_SIZE(steps));
    assert_int_equal(f->finished, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_exclusive_keeps_order, setup, teardown),
        cmocka_unit_test_setup_teardown(test_keys_do_not_wait_for_each_other, setup, teardown),
        cmocka_unit_test_setup_teardown(test_shared_run_together_between_exclusives, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_barrier_waits_for_all_before_and_for_none_after, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_a_blocked_lane_does_not_hold_up_another, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_closing_finishes_what_was_submitted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_freeing_runs_everything, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
