/* What routes of one workspace's files have in common. */
#pragma once

#include "gateway/exchange.h"
#include "gateway/file.h"
#include "gateway/path.h"

/* The workspace of the first parameter. The tree is the caller's. */
int files_open(struct exchange *x, struct tree **ret, struct failure *ret_failure);

/* The place of the path in the second. */
int files_place(struct exchange *x, struct tree *t, unsigned flags, struct place *ret,
                struct failure *ret_failure);

/* "file", "directory", "symlink", …: of a mode. */
const char *files_type_name(uint32_t mode);

/* {"name", "path", "type", "size", "mode", "uid", "gid", "nlink", "modified_at", "etag", "target"}:
 * target of a link alone, else null, as is what is no UTF-8, which is then in "name_base64" and
 * "path_base64". target: NULL: none. NULL: no memory. */
json_t *files_entry_json(struct bytes name, struct bytes path, const struct wire_attr *attr,
                         const struct buffer *target);

/* RFC 3339, to the nanosecond. NULL: no memory. */
json_t *files_time_json(const struct wire_time *t);

/* Sets NAME to bytes that are UTF-8, or to null and NAME_base64. -ENOMEM. */
int files_set_bytes(json_t *object, const char *name, struct bytes value);

/* A boolean of the query: "true", "1", or empty; false when absent. -EINVAL. */
/* What If-Match and If-None-Match say of a file; *ret NULL when neither is there. Lasts as long as
 * `store` and the exchange. -EINVAL: they are no lists of tags. */
struct files_condition {
    struct file_condition condition;
    const char *match, *none;
};
int files_condition(struct exchange *x, struct files_condition *store,
                    const struct file_condition **ret, struct failure *ret_failure);

int files_query_flag(struct exchange *x, const char *name, bool *ret, struct failure *ret_failure);
