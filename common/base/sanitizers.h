/* Which sanitizers this is compiled with: gcc defines a macro for each, clang tells when asked. */
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ADDRESS_SANITIZED 1
#endif
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) && !defined(ADDRESS_SANITIZED)
#define ADDRESS_SANITIZED 1
#endif
#if defined(__SANITIZE_THREAD__) && !defined(THREAD_SANITIZED)
#define THREAD_SANITIZED 1
#endif

#ifndef ADDRESS_SANITIZED
#define ADDRESS_SANITIZED 0
#endif
#ifndef THREAD_SANITIZED
#define THREAD_SANITIZED 0
#endif
