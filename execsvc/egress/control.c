#include "egress/control.h"

#include <jansson.h>
#include <string.h>
#include <sys/socket.h>

#include "base/cleanup.h"

static const char *const kind_names[] = {
    [CONTROL_OPEN] = "open",
    [CONTROL_CHANGE] = "change",
    [CONTROL_CLOSE] = "close",
};

/* Room for one descriptor. */
union rights {
    struct cmsghdr header;
    char space[CMSG_SPACE(sizeof(int))];
};

/* --- sending --------------------------------------------------------------------------------- */

static json_t *list_to_json(const struct allow_list *list)
{
    json_t *array = json_array();
    for (size_t i = 0; array && i < allow_list_count(list); i++)
        if (json_array_append_new(array, json_string(allow_list_text(list, i))) < 0) {
            json_decref(array);
            return NULL;
        }
    return array;
}

static char *to_text(const struct control_message *m)
{
    json_t *object = json_pack("{s:s, s:I, s:s*}", "kind", kind_names[m->kind], "id",
                               (json_int_t)m->id, "name", m->kind == CONTROL_OPEN ? m->name : NULL);
    if (object && m->kind != CONTROL_CLOSE &&
        json_object_set_new(object, "allow", list_to_json(m->list)) < 0) {
        json_decref(object);
        object = NULL;
    }
    char *text = object ? json_dumps(object, JSON_COMPACT) : NULL;
    json_decref(object);
    return text;
}

int control_send(int fd, const struct control_message *m)
{
    _cleanup_free_ char *text = to_text(m);
    if (!text)
        return -ENOMEM;
    union rights rights = {0};
    struct iovec part = {.iov_base = text, .iov_len = strlen(text)};
    struct msghdr header = {.msg_iov = &part, .msg_iovlen = 1};
    if (m->kind == CONTROL_OPEN) {
        header.msg_control = &rights;
        header.msg_controllen = sizeof rights;
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        *c = (struct cmsghdr){
            .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
        memcpy(CMSG_DATA(c), &m->listener, sizeof(int));
    }
    return sendmsg(fd, &header, MSG_DONTWAIT | MSG_NOSIGNAL) < 0 ? -errno : 0;
}

/* --- receiving ------------------------------------------------------------------------------- */

static int list_from_json(const json_t *array, struct allow_list **ret)
{
    struct failure failure;
    struct allow_list *list;
    if (!json_is_array(array))
        return -EBADMSG;
    int r = allow_list_new(&list);
    for (size_t i = 0; r == 0 && i < json_array_size(array); i++) {
        const char *entry = json_string_value(json_array_get(array, i));
        r = entry ? allow_list_add(list, bytes_of_string(entry), &failure) : -EBADMSG;
    }
    if (r < 0) {
        allow_list_free(list);
        return r == -ENOMEM ? r : -EBADMSG;
    }
    *ret = list;
    return 0;
}

static int from_json(const json_t *object, struct control_message *m)
{
    const char *kind = json_string_value(json_object_get(object, "kind"));
    const char *name = json_string_value(json_object_get(object, "name"));
    size_t k = 0;
    while (kind && k < ARRAY_SIZE(kind_names) && strcmp(kind, kind_names[k]) != 0)
        k++;
    if (!kind || k == ARRAY_SIZE(kind_names))
        return -EBADMSG;
    m->kind = (enum control_kind)k;
    m->id = (uint64_t)json_integer_value(json_object_get(object, "id"));
    if (m->kind == CONTROL_OPEN && (!name || m->listener < 0))
        return -EBADMSG;
    m->name = name ? strdup(name) : NULL;
    if (name && !m->name)
        return -ENOMEM;
    return m->kind == CONTROL_CLOSE ? 0
                                    : list_from_json(json_object_get(object, "allow"), &m->list);
}

int control_receive(int fd, struct control_message *ret)
{
    _cleanup_free_ char *text = malloc(CONTROL_MESSAGE_MAX);
    _cleanup_control_message_ struct control_message m = {.listener = -1};
    if (!text)
        return -ENOMEM;
    union rights rights = {0};
    struct iovec part = {.iov_base = text, .iov_len = CONTROL_MESSAGE_MAX};
    struct msghdr header = {
        .msg_iov = &part, .msg_iovlen = 1, .msg_control = &rights, .msg_controllen = sizeof rights};
    ssize_t n = recvmsg(fd, &header, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
    if (n <= 0)
        return n == 0 ? 0 : -errno;
    const struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
        c->cmsg_len == CMSG_LEN(sizeof(int)))
        memcpy(&m.listener, CMSG_DATA(c), sizeof(int));
    json_t *object = json_loadb(text, (size_t)n, 0, NULL);
    int r =
        object && !(header.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) ? from_json(object, &m) : -EBADMSG;
    json_decref(object);
    if (r < 0)
        return r;
    *ret = m;
    m = (struct control_message){.listener = -1};
    return 1;
}

void control_message_release(struct control_message *m)
{
    free(m->name);
    allow_list_free(m->list);
    close_fd(&m->listener);
}
