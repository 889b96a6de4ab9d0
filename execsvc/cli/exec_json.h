/* A command as `berth ps` and `berth top` tell of it. */
#pragma once

#include <jansson.h>

#include "base/buffer.h"
#include "wire/wire.h"

/* Appends its words, each as it would be read, with blanks between. -ENOMEM. */
int exec_words(struct buffer *b, struct bytes argv);

/* For how long it has run: "12s", "3m05s", "2h10m", "1d02h". */
void exec_age(uint64_t ns, char *text, size_t size);

/* One object, as `berth help ps` describes it. NULL: out of memory. */
json_t *exec_json(const struct wire_exec_command *c);
