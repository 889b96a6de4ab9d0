/* Thread IDs and names for the property test: reads lines "name HEX" and "id HEX", answers
 * each with a line: the result in hexadecimal, or "- ERRNO". */
#include <errno.h>
#include <stdio.h>

#include "names/thread_id.h"

static int value(char c)
{
    const char *digits = "0123456789abcdef";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* The bytes of a line of hexadecimal, or -1. */
static ssize_t parse(const char *hex, uint8_t *out, size_t size)
{
    size_t n = 0;
    for (; *hex && *hex != '\n'; hex += 2) {
        int high = value(hex[0]);
        int low = high < 0 ? -1 : value(hex[1]);
        if (low < 0 || n == size)
            return -1;
        out[n++] = (uint8_t)(high << 4 | low);
    }
    return (ssize_t)n;
}

static void print(const void *data, size_t len)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < len; i++)
        printf("%02x", bytes[i]);
    putchar('\n');
}

int main(void)
{
    static char line[8192];
    static uint8_t input[4096];
    while (fgets(line, sizeof line, stdin)) {
        bool to_name = strncmp(line, "name ", 5) == 0;
        if (!to_name && strncmp(line, "id ", 3) != 0)
            return 1;
        ssize_t len = parse(line + (to_name ? 5 : 3), input, sizeof input);
        if (len < 0)
            return 1;
        char name[THREAD_NAME_MAX + 1];
        uint8_t id[THREAD_ID_MAX];
        struct bytes view = bytes_of(input, (size_t)len);
        int r = to_name ? thread_id_to_name(view, name) : thread_id_from_name(view, id);
        if (r < 0)
            printf("- %d\n", -r);
        else if (to_name)
            print(name, strlen(name));
        else
            print(id, (size_t)r);
        (void)fflush(stdout);
    }
    return 0;
}
