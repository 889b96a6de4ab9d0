/* Within config/ alone. */
#pragma once

#include "config/document.h"
#include "config/services.h"

/* service_list_load of a document that is there. */
int service_list_read(const struct document *d, struct service_list *ret,
                      struct failure *ret_failure);
