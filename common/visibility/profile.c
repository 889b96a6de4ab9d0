#include "visibility/visibility.h"

#include <errno.h>
#include <stdlib.h>

#include "base/cleanup.h"
#include "base/log.h"

/* What tools make and can make again, and what no person reads file by file. Directories
 * alone, and only names that nobody gives to sources: build, dist, out, bin, lib, vendor, env
 * and coverage stay, since in some projects they are the sources or what is looked for; so do
 * .git, .github, .idea, .vscode and .cargo, which people and tools edit. */
static const char ide[] =
    /* JavaScript */
    "node_modules/\n"
    "bower_components/\n"
    "jspm_packages/\n"
    ".pnpm-store/\n"
    "**/.yarn/cache/\n"
    "**/.yarn/unplugged/\n"
    ".npm/\n"
    ".next/\n"
    ".nuxt/\n"
    ".svelte-kit/\n"
    ".angular/\n"
    ".turbo/\n"
    ".parcel-cache/\n"
    ".nyc_output/\n"
    /* Python */
    ".venv/\n"
    "venv/\n"
    "__pycache__/\n"
    "__pypackages__/\n"
    ".mypy_cache/\n"
    ".pytest_cache/\n"
    ".ruff_cache/\n"
    ".hypothesis/\n"
    ".ipynb_checkpoints/\n"
    ".tox/\n"
    ".nox/\n"
    ".eggs/\n"
    "*.egg-info/\n"
    /* Rust, Java, Kotlin, Scala, Clojure */
    "target/\n"
    ".gradle/\n"
    ".metals/\n"
    ".bloop/\n"
    ".cpcache/\n"
    /* others */
    ".cache/\n"
    ".ccls-cache/\n"
    ".clangd/\n"
    ".zig-cache/\n"
    "zig-cache/\n"
    ".stack-work/\n"
    "dist-newstyle/\n"
    ".dart_tool/\n"
    ".elixir_ls/\n"
    ".terraform/\n"
    ".direnv/\n"
    ".sass-cache/\n";

static const struct {
    const char *name;
    const char *text;
} profiles[] = {
    {"ide", ide},
    {"none", ""},
};

const char *visibility_profile(struct bytes name)
{
    for (size_t i = 0; i < ARRAY_SIZE(profiles); i++)
        if (bytes_equal(name, bytes_of_string(profiles[i].name)))
            return profiles[i].text;
    return NULL;
}

int visibility_profile_text(const char *name, char **ret, struct failure *ret_failure)
{
    char shown[2 * VISIBILITY_PROFILE_NAME_MAX];
    if (!visibility_profile(bytes_of_string(name)))
        return failure_set(ret_failure, -EINVAL,
                           "there is no profile \"%s\"; there are ide and none, and a file of "
                           "rules is named with a '/'",
                           log_escape(name, strlen(name), shown, sizeof shown));
    char *text;
    if (asprintf(&text, "profile:%s\n", name) < 0)
        return failure_set(ret_failure, -ENOMEM, "out of memory");
    *ret = text;
    return 0;
}
