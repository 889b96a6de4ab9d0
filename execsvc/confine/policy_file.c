#include "confine/policy_file.h"

#include <errno.h>

#include "store/json_file.h"

int policy_file_read(int directory, struct policy *ret)
{
    json_t *object = NULL;
    struct failure failure;
    int r = json_file_read(directory, POLICY_FILE, &object);
    if (r == -ENOENT) {
        *ret = POLICY_DEFAULT;
        return 0;
    }
    if (r < 0)
        return r;
    r = policy_from_json(object, "", NULL, ret, &failure);
    json_decref(object);
    return r == -EINVAL ? -EIO : r;
}

int policy_file_write(int directory, const struct policy *policy)
{
    json_t *object = policy_to_json(policy);
    if (!object)
        return -ENOMEM;
    int r = json_file_write(directory, POLICY_FILE, object);
    json_decref(object);
    return r;
}
