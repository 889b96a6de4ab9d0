/* What every unit test includes: cmocka, after the headers that it needs before it. */
#pragma once

/* clang-format off */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
/* clang-format on */
