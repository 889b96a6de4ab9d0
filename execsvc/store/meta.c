#include "store/meta.h"

#include "base/clock.h"
#include "store/json_file.h"
#include "store/labels.h"
#include "store/store_private.h"

#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#define META_FILE "meta.json"
#define META_VERSION 2
#define META_VERSION_FIRST 1 /* without a life, a state and labels */

static void json_release(json_t **object)
{
    json_decref(*object);
}
#define _cleanup_json_ _cleanup_(json_release)

/* --- thread ID: a string, or hexadecimal where JSON has no string for it --------- */

static json_t *hex_string(const uint8_t *data, size_t len)
{
    static const char digits[] = "0123456789abcdef";
    char text[2 * THREAD_ID_MAX];
    for (size_t i = 0; i < len; i++) {
        text[2 * i] = digits[data[i] >> 4];
        text[2 * i + 1] = digits[data[i] & 15];
    }
    return json_stringn(text, 2 * len);
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static bool hex_parse(const char *text, size_t len, struct meta *meta)
{
    if (len == 0 || len % 2 || len > 2 * THREAD_ID_MAX)
        return false;
    for (size_t i = 0; i < len; i += 2) {
        int high = hex_digit(text[i]), low = hex_digit(text[i + 1]);
        if (high < 0 || low < 0)
            return false;
        meta->thread_id[i / 2] = (uint8_t)(high << 4 | low);
    }
    meta->thread_id_len = len / 2;
    return true;
}

static int set_thread_id(json_t *object, const struct meta *meta)
{
    const char *id = (const char *)meta->thread_id;
    size_t len = meta->thread_id_len;
    /* json_stringn refuses what is not UTF-8, and readers refuse NUL. */
    json_t *text = memchr(id, '\0', len) ? NULL : json_stringn(id, len);
    if (text)
        return json_object_set_new(object, "thread_id", text);
    return json_object_set_new(object, "thread_id_hex", hex_string(meta->thread_id, len));
}

static bool parse_thread_id(const json_t *object, struct meta *meta)
{
    const json_t *text = json_object_get(object, "thread_id");
    const json_t *hex = json_object_get(object, "thread_id_hex");
    if (!text)
        return json_is_string(hex) &&
               hex_parse(json_string_value(hex), json_string_length(hex), meta);
    size_t len = json_string_length(text);
    if (!json_is_string(text) || len == 0 || len > THREAD_ID_MAX)
        return false;
    memcpy(meta->thread_id, json_string_value(text), len);
    meta->thread_id_len = len;
    return true;
}

/* --- the file -------------------------------------------------------------------- */

static bool parse_integer(const json_t *object, const char *key, int64_t min, int64_t max,
                          int64_t *ret)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_integer(value) || json_integer_value(value) < min ||
        json_integer_value(value) > max)
        return false;
    *ret = json_integer_value(value);
    return true;
}

/* What the first version did not have. */
static int parse_life(const json_t *object, struct meta *meta)
{
    const json_t *labels = json_object_get(object, "labels");
    int64_t state, revision, idle, expires;
    if (!parse_integer(object, "state", WIRE_WORKSPACE_RUNNING, WIRE_WORKSPACE_STOPPED, &state) ||
        !parse_integer(object, "revision", 1, INT64_MAX, &revision) ||
        !parse_integer(object, "idle_ms", 0, INT64_MAX, &idle) ||
        !parse_integer(object, "expires_ms", 0, INT64_MAX, &expires) || !json_is_object(labels))
        return -EIO;
    _cleanup_free_ char *text = json_dumps(labels, JSON_COMPACT);
    if (!text)
        return -ENOMEM;
    struct failure failure;
    int r = labels_parse(bytes_of_string(text), &meta->labels, &failure);
    if (r < 0)
        return r == -ENOMEM ? r : -EIO;
    meta->state = (enum wire_workspace_state)state;
    meta->revision = (uint64_t)revision;
    meta->idle_ms = (uint64_t)idle;
    meta->expires_ms = (uint64_t)expires;
    return 0;
}

static int first_life(struct meta *meta)
{
    meta->state = WIRE_WORKSPACE_RUNNING;
    meta->revision = 1;
    meta->labels = strdup(LABELS_NONE);
    return meta->labels ? 0 : -ENOMEM;
}

int meta_read(int dir_fd, struct meta *ret)
{
    _cleanup_json_ json_t *object = NULL;
    int r = json_file_read(dir_fd, META_FILE, &object);
    if (r < 0)
        return r;
    _cleanup_meta_ struct meta meta = {0};
    const json_t *time = json_object_get(object, "created_at");
    int64_t version, slot, sec, nsec;
    if (!parse_integer(object, "version", META_VERSION_FIRST, META_VERSION, &version) ||
        !parse_integer(object, "slot", 1, SLOT_MAX, &slot) ||
        !parse_integer(time, "sec", INT64_MIN, INT64_MAX, &sec) ||
        !parse_integer(time, "nsec", 0, NSEC_PER_SEC - 1, &nsec) || !parse_thread_id(object, &meta))
        return -EIO;
    meta.slot = (uint32_t)slot;
    meta.created_at = (struct wire_time){.sec = sec, .nsec = (uint32_t)nsec};
    r = version == META_VERSION_FIRST ? first_life(&meta) : parse_life(object, &meta);
    if (r < 0)
        return r;
    *ret = meta;
    meta.labels = NULL;
    return 0;
}

int meta_write(int dir_fd, const struct meta *meta)
{
    _cleanup_json_ json_t *labels = json_loads(meta->labels, 0, NULL);
    if (!labels)
        return -ENOMEM;
    _cleanup_json_ json_t *object = json_pack(
        "{s:i, s:I, s:{s:I, s:I}, s:i, s:I, s:I, s:I, s:O}", "version", META_VERSION, "slot",
        (json_int_t)meta->slot, "created_at", "sec", (json_int_t)meta->created_at.sec, "nsec",
        (json_int_t)meta->created_at.nsec, "state", (int)meta->state, "revision",
        (json_int_t)meta->revision, "idle_ms", (json_int_t)meta->idle_ms, "expires_ms",
        (json_int_t)meta->expires_ms, "labels", labels);
    if (!object || set_thread_id(object, meta) < 0)
        return -ENOMEM;
    return json_file_write(dir_fd, META_FILE, object);
}

void meta_release(struct meta *meta)
{
    free(meta->labels);
    meta->labels = NULL;
}

int meta_used(int dir_fd, uint64_t *ret_ms)
{
    struct stat st;
    if (fstatat(dir_fd, META_FILE, &st, AT_SYMLINK_NOFOLLOW) < 0)
        return -errno;
    if (st.st_mtim.tv_sec < 0)
        *ret_ms = 0;
    else
        *ret_ms = (uint64_t)st.st_mtim.tv_sec * 1000 + (uint64_t)st.st_mtim.tv_nsec / NSEC_PER_MSEC;
    return 0;
}

int meta_set_used(int dir_fd, uint64_t ms)
{
    const struct timespec times[2] = {
        {.tv_nsec = UTIME_OMIT},
        {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000 * NSEC_PER_MSEC)}};
    return utimensat(dir_fd, META_FILE, times, AT_SYMLINK_NOFOLLOW) < 0 ? -errno : 0;
}
