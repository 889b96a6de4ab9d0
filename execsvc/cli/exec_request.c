#include "cli/exec_request.h"

#include <stdlib.h>

#include "cli/exec_terminal.h"

static int append_string(struct buffer *list, uint32_t *count, const char *text)
{
    int r = wire_list_append(list, bytes_of_string(text));
    if (r == 0)
        (*count)++;
    return r;
}

static int append_terminal_type(struct buffer *list, uint32_t *count)
{
    const char *type = getenv("TERM");
    _cleanup_buffer_ struct buffer variable = {0};
    if (!type || !type[0])
        return 0;
    int r = buffer_printf(&variable, "TERM=%s", type);
    return r < 0 ? r : append_string(list, count, (const char *)variable.data);
}

static uint32_t flags_of(const struct exec_options *o, const struct exec_place *place)
{
    bool at_path = place->mount_path && o->path != EXEC_PATH_REMOTE;
    return (at_path ? WIRE_EXEC_PATH : 0U) |
           (at_path && o->path == EXEC_PATH_LOCAL ? WIRE_EXEC_PATH_ONLY : 0U) |
           (o->input ? WIRE_EXEC_STDIN : 0U) | (o->merge ? WIRE_EXEC_MERGE : 0U) |
           (o->terminal ? WIRE_EXEC_PTY : 0U) | (o->detach ? WIRE_EXEC_DETACH : 0U) |
           (o->keep ? WIRE_EXEC_KEEP : 0U) | (o->id ? WIRE_EXEC_DURABLE : 0U);
}

int exec_request_start(const struct exec_options *o, const struct exec_place *place, const char *id,
                       struct exec_request *ret)
{
    uint32_t argv_count = 0;
    uint32_t env_count = 0;
    *ret = (struct exec_request){0};
    int r = o->terminal ? append_terminal_type(&ret->env, &env_count) : 0;
    for (size_t i = 0; r == 0 && i < o->environment_count; i++)
        r = append_string(&ret->env, &env_count, o->environment[i]);
    for (size_t i = 0; r == 0 && i < o->command_count; i++)
        r = append_string(&ret->argv, &argv_count, o->command[i]);
    if (r < 0)
        return r;
    ret->message = (struct wire_message){
        .type = WIRE_EXEC,
        .exec = {.flags = flags_of(o, place),
                 .workspace_flags = place->by_name ? WIRE_WORKSPACE_BY_NAME : 0,
                 .timeout_ms = o->timeout_ms,
                 .max_output = o->max_output,
                 .linger_ms = (uint64_t)o->reattach_s * 1000,
                 .memory_max = o->memory_max,
                 .processes_max = o->processes_max,
                 .workspace = bytes_of_string(place->workspace),
                 .id = bytes_of_string(id),
                 .cwd = bytes_of_string(place->directory),
                 .mount_path = bytes_of_string(place->mount_path),
                 .argv = wire_list_of(&ret->argv, argv_count),
                 .env = wire_list_of(&ret->env, env_count)}};
    struct wire_exec *exec = &ret->message.exec;
    if (o->terminal)
        (void)exec_terminal_size(&exec->rows, &exec->columns);
    return 0;
}

void exec_request_attach(const struct exec_place *place, const char *id, uint32_t flags,
                         uint64_t from_stdout, uint64_t from_stderr, struct exec_request *ret)
{
    *ret = (struct exec_request){
        .message = {.type = WIRE_EXEC_ATTACH,
                    .exec_attach = {.flags = flags,
                                    .workspace_flags = place->by_name ? WIRE_WORKSPACE_BY_NAME : 0,
                                    .from_stdout = from_stdout,
                                    .from_stderr = from_stderr,
                                    .workspace = bytes_of_string(place->workspace),
                                    .id = bytes_of_string(id)}}};
}

void exec_request_release(struct exec_request *r)
{
    buffer_release(&r->argv);
    buffer_release(&r->env);
}
