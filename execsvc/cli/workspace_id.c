#include "cli/workspace_id.h"

bool workspace_ids_check(const struct cli *cli, char *const *ids, size_t max)
{
    for (; *ids; ids++) {
        size_t len = strlen(*ids);
        if (len == 0) {
            (void)cli_usage_error(cli, "an empty word is no workspace");
            return false;
        }
        if (len > max) {
            (void)cli_usage_error(cli, "%.40s… has %zu bytes; at most %zu are allowed", *ids, len,
                                  max);
            return false;
        }
    }
    return true;
}
