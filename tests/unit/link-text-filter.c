/* Texts of symbolic links for the property test: reads lines "MODE DEPTH HEX", answers each with
 * the text shown in hexadecimal, or "-". The workspace is the mount at /mnt. */
#include <stdio.h>
#include <stdlib.h>

#include "names/link_text.h"

int main(void)
{
    char mode[32], hex[2 * PATH_MAX];
    int depth;
    while (scanf("%31s %d %8191s", mode, &depth, hex) == 3) {
        struct link_rules rules = {.prefixes = LINK_PREFIXES_DEFAULT, .mountpoint = "/mnt"};
        struct failure f;
        if (link_mode_parse(mode, &rules.mode, &f) < 0)
            return 1;
        char text[PATH_MAX], target[PATH_MAX];
        size_t len = strlen(hex) / 2;
        for (size_t i = 0; i < len; i++) {
            const char digits[] = {hex[2 * i], hex[2 * i + 1], '\0'};
            text[i] = (char)strtoul(digits, NULL, 16);
        }
        const struct link_place place = {.depth = depth};
        struct bytes shown = bytes_of(text, len);
        enum link_verdict verdict = link_text_judge(&rules, &place, shown, target);
        if (verdict == LINK_TRANSLATED)
            shown = bytes_of_string(target);
        for (size_t i = 0; verdict != LINK_REFUSED && i < shown.len; i++)
            printf("%02x", shown.data[i]);
        (void)puts(verdict == LINK_REFUSED ? "-" : "");
        (void)fflush(stdout);
    }
    return 0;
}
