/* Visibility for the property test. Reads requests from standard input, integers of four bytes in
 * the machine's order: three rule sets (length, text; service, workspace, mount), the number of
 * paths, and the paths (length, bytes; a directory ends in '/'). Answers each with a number:
 * the length of an error and its text; or 0, and then two bytes a path: s, u or h, and l or -
 * for whether the directory's listing has it. */
#include <stdio.h>
#include <stdlib.h>

#include "visibility/visibility.h"

static bool read_bytes(uint8_t **ret, size_t *ret_len)
{
    uint32_t len;
    if (fread(&len, sizeof len, 1, stdin) != 1)
        return false;
    *ret = malloc(len + 1U);
    *ret_len = len;
    return *ret && fread(*ret, 1, len, stdin) == len;
}

static int parse(struct visibility_view *view, struct failure *failure)
{
    int result = 0;
    for (unsigned i = 0; i < VISIBILITY_SOURCES; i++) {
        uint8_t *text = NULL;
        size_t len;
        if (!read_bytes(&text, &len))
            exit(feof(stdin) && i == 0 ? 0 : 1);
        if (result == 0)
            result = visibility_rules_parse(bytes_of(text, len), &view->sources[i], failure);
        free(text);
    }
    return result;
}

static void answer(const struct visibility_view *view, const uint8_t *path, size_t len)
{
    struct visibility_state dir;
    if (visibility_state_root(view, &dir) < 0)
        exit(1);
    for (;;) {
        const uint8_t *slash = memchr(path, '/', len);
        size_t name_len = slash ? (size_t)(slash - path) : len;
        struct bytes name = bytes_of(path, name_len);
        if (!slash || name_len + 1 == len) {
            enum visibility v = visibility_of(view, &dir, name, slash != NULL);
            putchar(visibility_name(v)[0]);
            putchar(visibility_listed(&dir, v) ? 'l' : '-');
            visibility_state_release(&dir);
            return;
        }
        struct visibility_state next;
        if (visibility_state_enter(view, &dir, name, &next) < 0)
            exit(1);
        visibility_state_release(&dir);
        dir = next;
        path += name_len + 1;
        len -= name_len + 1;
    }
}

int main(void)
{
    for (;;) {
        struct visibility_view view = {0};
        struct failure failure;
        uint32_t count = 0;
        uint32_t error = parse(&view, &failure) < 0 ? (uint32_t)strlen(failure.text) : 0;
        if (fread(&count, sizeof count, 1, stdin) != 1)
            return 1;
        (void)fwrite(&error, sizeof error, 1, stdout);
        (void)fwrite(failure.text, 1, error, stdout);
        for (uint32_t i = 0; i < count; i++) {
            uint8_t *path = NULL;
            size_t len;
            if (!read_bytes(&path, &len) || len == 0)
                return 1;
            if (!error)
                answer(&view, path, len);
            free(path);
        }
        (void)fflush(stdout);
        for (unsigned i = 0; i < VISIBILITY_SOURCES; i++)
            visibility_rules_unref(view.sources[i]);
    }
}
