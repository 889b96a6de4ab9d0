/* Any elements, from the second byte on, as a tree: whatever is made of them is below its
 * directory, and what lies beside that is as it was. */
#include <assert.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/cleanup.h"
#include "store/tree_writer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static char top[64];

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    return ftw->level > 0 ? remove(path) : 0;
}

static void prepare(void)
{
    char path[96];
    (void)snprintf(top, sizeof top, "/dev/shm/berth-fuzz-%d", (int)getpid());
    (void)nftw(top, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    (void)mkdir(top, 0700);
    (void)snprintf(path, sizeof path, "%s/outside", top);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert(fd >= 0 && write(fd, "canary", 6) == 6);
    (void)close(fd);
    (void)snprintf(path, sizeof path, "%s/tree", top);
    assert(mkdir(path, 0700) == 0);
}

static void check(void)
{
    char path[96], text[8] = "";
    struct stat st;
    (void)snprintf(path, sizeof path, "%s/outside", top);
    int fd = open(path, O_RDONLY);
    assert(fd >= 0 && read(fd, text, 7) == 6 && strcmp(text, "canary") == 0);
    assert(fstat(fd, &st) == 0 && st.st_nlink == 1 && (st.st_mode & 07777) == 0600);
    (void)close(fd);
    assert(stat(top, &st) == 0 && st.st_nlink == 3);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const struct visibility_view reserved = {0};
    const struct tree_writer_options options = {.view = &reserved};
    struct tree_writer *writer;
    struct tree_counts counts;
    struct failure f;
    char path[96];
    if (size == 0)
        return 0;
    prepare();
    (void)snprintf(path, sizeof path, "%s/tree", top);
    _cleanup_close_ int fd = open(path, O_RDONLY | O_DIRECTORY);
    const struct wire_list list = {.data = data + 1, .len = (uint32_t)size - 1};
    int r = tree_writer_new(fd, &options, &writer);
    if (r < 0)
        return 0;
    r = tree_writer_add_list(writer, &list, &f);
    if (r == 0)
        r = tree_writer_finish(writer, &counts, &f);
    assert(r == 0 || f.error == r);
    tree_writer_free(writer);
    check();
    return 0;
}
