/* docs/openapi.json, as it was when this program was built. */
#pragma once

#include <stddef.h>

extern const char openapi_document[];
extern const size_t openapi_document_size;
