#include "exec/environment.h"

#include <stdio.h>

#include "base/log.h"

#define RESERVED_PREFIX "BERTH_"

/* Longest part of a peer's string that an error text shows. */
#define SHOWN_MAX 160

static struct bytes name_of(struct bytes variable)
{
    const uint8_t *equals = variable.len ? memchr(variable.data, '=', variable.len) : NULL;
    return equals ? bytes_of(variable.data, (size_t)(equals - variable.data)) : variable;
}

/* Appends NAME=VALUE, or replaces the one of that name. */
static int environment_put(struct strings *environment, struct bytes variable)
{
    struct bytes name = name_of(variable);
    int r = strings_append(environment, variable);
    if (r < 0)
        return r;
    for (size_t i = 0; i + 1 < environment->count; i++) {
        if (!bytes_equal(name_of(bytes_of_string(environment->items[i])), name))
            continue;
        free(environment->items[i]);
        environment->items[i] = environment->items[--environment->count];
        environment->items[environment->count] = NULL;
        break;
    }
    return 0;
}

static int environment_put_value(struct strings *environment, const char *name, struct bytes value)
{
    return strings_append_joined(environment, bytes_of_string(name), '=', value);
}

static int build_base(const struct environment_base *base, struct strings *environment)
{
    char url[64];
    (void)snprintf(url, sizeof url, "http://127.0.0.1:%u", base->proxy_port);
    const char *proxy = base->proxy_port ? url : NULL;
    const char *direct = base->proxy_port ? "localhost,127.0.0.1,::1" : NULL;
    const struct {
        const char *name;
        const char *value;
    } fixed[] = {
        {"PATH", ENVIRONMENT_DEFAULT_PATH},
        {"HOME", base->home},
        {"USER", base->user},
        {"LOGNAME", base->user},
        {"SHELL", "/bin/sh"},
        {"LANG", "C.UTF-8"},
        {"BERTH_WORKSPACE", base->workspace},
        {"TERM", base->terminal ? "xterm" : NULL},
        {"TMPDIR", base->tmp},
        {"PWD", base->working},
        {"ALL_PROXY", proxy},
        {"HTTP_PROXY", proxy},
        {"HTTPS_PROXY", proxy},
        {"all_proxy", proxy},
        {"http_proxy", proxy},
        {"https_proxy", proxy},
        {"NO_PROXY", direct},
        {"no_proxy", direct},
    };
    for (size_t i = 0; i < ARRAY_SIZE(fixed); i++) {
        if (!fixed[i].value)
            continue;
        int r = environment_put_value(environment, fixed[i].name, bytes_of_string(fixed[i].value));
        if (r < 0)
            return r;
    }
    if (memchr(base->thread_id.data, 0, base->thread_id.len))
        return 0;
    return environment_put_value(environment, "BERTH_THREAD_ID", base->thread_id);
}

static int check_variable(struct bytes variable, struct failure *ret_failure)
{
    char shown[SHOWN_MAX];
    struct bytes name = name_of(variable);
    (void)log_escape(name.data, name.len, shown, sizeof shown);
    if (name.len == variable.len)
        return failure_set(ret_failure, -EINVAL, "environment: %s: has no '='", shown);
    if (name.len == 0)
        return failure_set(ret_failure, -EINVAL, "environment: a variable without a name");
    if (memchr(variable.data, 0, variable.len))
        return failure_set(ret_failure, -EINVAL, "environment: %s: holds a NUL byte", shown);
    size_t prefix = strlen(RESERVED_PREFIX);
    if (name.len >= prefix && memcmp(name.data, RESERVED_PREFIX, prefix) == 0)
        return failure_set(ret_failure, -EINVAL,
                           "environment: %s: names that start with " RESERVED_PREFIX
                           " are reserved by the service",
                           shown);
    if (variable.len > ENVIRONMENT_STRING_MAX)
        return failure_set(ret_failure, -E2BIG,
                           "environment: %s: %zu bytes, and the kernel takes at most %d", shown,
                           variable.len, ENVIRONMENT_STRING_MAX);
    return 0;
}

static int no_memory(struct failure *ret_failure)
{
    return failure_set(ret_failure, -ENOMEM, "%s", strerror(ENOMEM));
}

int environment_build(const struct environment_base *base, const struct wire_list *caller,
                      struct strings *ret, struct failure *ret_failure)
{
    _cleanup_strings_ struct strings environment = {0};
    if (build_base(base, &environment) < 0)
        return no_memory(ret_failure);
    uint32_t offset = 0;
    struct bytes variable;
    while (wire_list_next(caller, &offset, &variable)) {
        int r = check_variable(variable, ret_failure);
        if (r < 0)
            return r;
        if (environment_put(&environment, variable) < 0)
            return no_memory(ret_failure);
    }
    *ret = environment;
    environment = (struct strings){0};
    return 0;
}

const char *environment_get(const struct strings *environment, const char *name)
{
    size_t len = strlen(name);
    for (size_t i = 0; i < environment->count; i++)
        if (strncmp(environment->items[i], name, len) == 0 && environment->items[i][len] == '=')
            return environment->items[i] + len + 1;
    return NULL;
}

int environment_arguments(const struct wire_list *argv, struct strings *ret,
                          struct failure *ret_failure)
{
    _cleanup_strings_ struct strings arguments = {0};
    uint32_t offset = 0;
    struct bytes argument;
    while (wire_list_next(argv, &offset, &argument)) {
        if (argument.len > ENVIRONMENT_STRING_MAX)
            return failure_set(ret_failure, -E2BIG,
                               "argument %zu: %zu bytes, and the kernel takes at most %d",
                               arguments.count, argument.len, ENVIRONMENT_STRING_MAX);
        int r = strings_append(&arguments, argument);
        if (r == -EINVAL)
            return failure_set(ret_failure, -EINVAL, "argument %zu: holds a NUL byte",
                               arguments.count);
        if (r < 0)
            return no_memory(ret_failure);
    }
    if (arguments.count == 0)
        return failure_set(ret_failure, -EINVAL, "no command: the argument array is empty");
    *ret = arguments;
    arguments = (struct strings){0};
    return 0;
}

int environment_programs(const char *program, const char *path, struct strings *ret)
{
    _cleanup_strings_ struct strings programs = {0};
    struct bytes name = bytes_of_string(program);
    int r = 0;
    if (strchr(program, '/')) {
        r = strings_append(&programs, name);
    } else if (name.len > 0) {
        const char *element = path;
        for (;;) {
            size_t len = strcspn(element, ":");
            /* "./prog" rather than "prog", so that a script sees a path with a '/'. */
            struct bytes directory = len ? bytes_of(element, len) : bytes_of_string(".");
            r = strings_append_joined(&programs, directory, '/', name);
            if (r < 0 || element[len] == 0)
                break;
            element += len + 1;
        }
    }
    if (r < 0)
        return r;
    *ret = programs;
    programs = (struct strings){0};
    return 0;
}
