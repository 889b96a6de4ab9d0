/* Whether a directory may become a service's root. What is in a root's tmp and trash is deleted, so
 * somebody else's directory, given by mistake, must not become one. */
#pragma once

#include "base/failure.h"

/* What makes a directory a root: it is written at the first start, before anything else is kept
 * there. */
#define SERVICE_FILE "service.json"

/* 0: it is a root, or has nothing that a first start does not leave. -EEXIST, or another negative
 * errno. */
int adopt_check(int root_fd, const char *root, struct failure *ret_failure);
