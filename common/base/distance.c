#include "base/distance.h"

#include <stdint.h>
#include <string.h>

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

size_t word_distance(const char *a, const char *b)
{
    size_t rows = strlen(a);
    size_t columns = strlen(b);
    size_t d[WORD_DISTANCE_MAX + 1][WORD_DISTANCE_MAX + 1];
    if (rows > WORD_DISTANCE_MAX || columns > WORD_DISTANCE_MAX)
        return SIZE_MAX;
    for (size_t i = 0; i <= rows; i++) {
        for (size_t k = 0; k <= columns; k++) {
            if (i == 0 || k == 0) {
                d[i][k] = i + k;
                continue;
            }
            size_t replace = d[i - 1][k - 1] + (a[i - 1] != b[k - 1]);
            d[i][k] = least(replace, least(d[i - 1][k], d[i][k - 1]) + 1);
            if (i > 1 && k > 1 && a[i - 1] == b[k - 2] && a[i - 2] == b[k - 1])
                d[i][k] = least(d[i][k], d[i - 2][k - 2] + 1);
        }
    }
    return d[rows][columns];
}
