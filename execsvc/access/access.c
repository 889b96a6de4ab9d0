#include "access/access.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "access/grants_file.h"
#include "base/cleanup.h"
#include "base/clock.h"
#include "base/log.h"

/* For clients: an operator is likely at it. */
#define BROKEN_RETRY_S 5

struct access {
    char *file; /* NULL: none */
    int (*open)(void *context);
    void *context;
    bool certificates;
    struct grants grants;
    struct stat stat; /* of the file that grants is of */
    bool broken;      /* the file cannot be read or is wrong */
    char error[FAILURE_TEXT_MAX];
    struct failures *failures;
};

static int load(const struct access *a, struct grants *ret, struct stat *ret_stat,
                struct failure *ret_failure)
{
    int fd = a->open ? a->open(a->context) : grants_open(a->file);
    int r = grants_read(fd, a->file, ret, ret_stat, ret_failure);
    close_fd(&fd);
    return r;
}

int access_open(const struct access_options *options, struct access **ret,
                struct failure *ret_failure)
{
    struct access *a = calloc(1, sizeof *a);
    int r = a ? 0 : -ENOMEM;
    if (a) {
        a->certificates = options->certificates;
        a->open = options->open;
        a->context = options->context;
        a->failures = failures_new();
        a->file = options->file ? strdup(options->file) : NULL;
        r = a->failures && (a->file || !options->file) ? 0 : -ENOMEM;
    }
    if (r < 0)
        (void)failure_set(ret_failure, r, "out of memory");
    else if (a->file)
        r = load(a, &a->grants, &a->stat, ret_failure);
    if (r < 0) {
        access_free(a);
        return r;
    }
    *ret = a;
    return 0;
}

void access_free(struct access *a)
{
    if (!a)
        return;
    grants_release(&a->grants);
    failures_free(a->failures);
    free(a->file);
    free(a);
}

/* --- the file --------------------------------------------------------------------------------- */

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
           a->st_mode == b->st_mode && a->st_uid == b->st_uid &&
           memcmp(&a->st_mtim, &b->st_mtim, sizeof a->st_mtim) == 0 &&
           memcmp(&a->st_ctim, &b->st_ctim, sizeof a->st_ctim) == 0;
}

bool access_refresh(struct access *a)
{
    struct stat st;
    struct grants grants = {0};
    struct failure failure;
    if (!a->file || (!a->broken && stat(a->file, &st) == 0 && same_file(&st, &a->stat)))
        return false;
    if (load(a, &grants, &st, &failure) < 0) {
        if (!a->broken || strcmp(a->error, failure.text) != 0)
            log_error("nobody gets in anew until this is right: %s", failure.text);
        a->broken = true;
        (void)snprintf(a->error, sizeof a->error, "%s", failure.text);
        return false;
    }
    grants_release(&a->grants);
    a->grants = grants;
    a->stat = st;
    a->broken = false;
    log_info("access file %s: %zu grants", a->file, grants.count);
    return true;
}

bool access_stands(const struct access *a, const struct grant *grant)
{
    if (grant_is_over(grant, time(NULL)))
        return false;
    if (a->broken || (!grant->has_token && !grant->certificate && !grant->has_user))
        return true;
    for (size_t i = 0; i < a->grants.count; i++)
        if (grant_equal(a->grants.list[i], grant))
            return true;
    return false;
}

int access_status(const struct access *a, json_t *object)
{
    json_t *access = json_pack("{s:s?,s:I,s:s?}", "file", a->file, "grants",
                               (json_int_t)a->grants.count, "error", a->broken ? a->error : NULL);
    return !access || json_object_set_new(object, "access", access) < 0 ? -ENOMEM : 0;
}

/* --- decisions -------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static void refuse(struct access_decision *d, int status,
                                                         const char *format, ...)
{
    va_list args;
    va_start(args, format);
    d->status = status;
    (void)vsnprintf(d->text, sizeof d->text, format, args);
    va_end(args);
}

/* Whose line it is nobody can tell now. */
static void refuse_all(struct access_decision *d)
{
    refuse(d, 503,
           "it cannot read who may enter: its access file is missing or wrong. Its log and `berth "
           "status` say what is");
    d->retry_s = BROKEN_RETRY_S;
}

/* Takes grant. */
static void let_in(struct access_decision *d, struct grant *grant)
{
    d->grant = grant;
    if (!grant)
        refuse(d, 503, "out of memory");
}

static void decide_local(const struct access *a, const struct access_caller *caller,
                         struct access_decision *d)
{
    char id[GRANT_ID_MAX + 1];
    if (caller->uid == geteuid() || caller->uid == 0) {
        (void)snprintf(id, sizeof id, "user:%u", (unsigned)caller->uid);
        let_in(d, grant_new_whole(id));
        return;
    }
    for (size_t i = 0; !a->broken && i < a->grants.count; i++) {
        struct grant *g = a->grants.list[i];
        if (g->has_user && g->user == caller->uid && !grant_is_over(g, time(NULL))) {
            let_in(d, grant_ref(g));
            return;
        }
    }
    if (a->broken)
        refuse_all(d);
    else
        refuse(d, 403, "user %u may not use the service of user %u", (unsigned)caller->uid,
               (unsigned)geteuid());
}

static bool has_name(const struct access_caller *caller, const char *name)
{
    for (size_t i = 0; caller->certificate && caller->names && caller->names[i]; i++)
        if (strcmp(caller->names[i], name) == 0)
            return true;
    return false;
}

static bool bearer(struct bytes authorization, struct bytes *ret)
{
    static const char scheme[] = "Bearer ";
    size_t skip = sizeof scheme - 1, end = authorization.len;
    if (end <= skip || strncasecmp((const char *)authorization.data, scheme, skip) != 0)
        return false;
    while (skip < end && authorization.data[skip] == ' ')
        skip++;
    while (end > skip &&
           (authorization.data[end - 1] == ' ' || authorization.data[end - 1] == '\t'))
        end--;
    *ret = bytes_of(authorization.data + skip, end - skip);
    return true;
}

/* All are compared, each in constant time: the time tells nothing about which was near. */
static struct grant *find_token(const struct access *a,
                                const uint8_t digest[GRANT_TOKEN_DIGEST_SIZE])
{
    struct grant *found = NULL;
    for (size_t i = 0; i < a->grants.count; i++) {
        struct grant *g = a->grants.list[i];
        if (g->has_token && CRYPTO_memcmp(digest, g->token, sizeof g->token) == 0)
            found = g;
    }
    return found;
}

static void decide_token(struct access *a, const struct access_caller *caller, struct bytes token,
                         struct access_decision *d)
{
    uint8_t digest[GRANT_TOKEN_DIGEST_SIZE];
    uint64_t now = clock_monotonic_ns(), part;
    if (a->broken) {
        refuse_all(d);
        return;
    }
    d->retry_s = failures_wait(a->failures, caller->address, now);
    if (d->retry_s > 0) {
        refuse(d, 429, "too many wrong tokens have come from this address");
        return;
    }
    if (!grant_token_digest(token, digest)) {
        refuse(d, 503, "OpenSSL cannot compute SHA-256");
        return;
    }
    struct grant *g = find_token(a, digest);
    if (!g) {
        memcpy(&part, digest, sizeof part);
        failures_note(a->failures, caller->address, part, now);
        refuse(d, 401, "the bearer token is not one of this service");
    } else if (grant_is_over(g, time(NULL))) {
        refuse(d, 401, "the bearer token has expired; ask for a new one");
    } else if (g->certificate && !has_name(caller, g->certificate)) {
        refuse(d, 403, "the bearer token goes with another client certificate");
    } else {
        let_in(d, grant_ref(g));
    }
}

static void decide_certificate(const struct access *a, const struct access_caller *caller,
                               struct access_decision *d)
{
    if (!a->file) {
        let_in(d, grant_new_whole(caller->names && caller->names[0] ? caller->names[0]
                                                                    : "certificate"));
        return;
    }
    for (size_t i = 0; !a->broken && i < a->grants.count; i++) {
        struct grant *g = a->grants.list[i];
        if (g->certificate && !g->has_token && has_name(caller, g->certificate) &&
            !grant_is_over(g, time(NULL))) {
            let_in(d, grant_ref(g));
            return;
        }
    }
    char name[96];
    const char *first = caller->names && caller->names[0] ? caller->names[0] : "";
    if (a->broken)
        refuse_all(d);
    else
        refuse(d, 401,
               "no line of the access file is for the client certificate %s alone, and no token "
               "was given",
               log_escape(first, strlen(first), name, sizeof name));
}

void access_decide(struct access *a, const struct access_caller *caller,
                   struct access_decision *ret)
{
    struct bytes token;
    *ret = (struct access_decision){0};
    (void)access_refresh(a);
    if (caller->local)
        decide_local(a, caller, ret);
    else if (a->certificates && !caller->certificate)
        refuse(ret, 403, "a client certificate of this service's client CA is needed");
    else if (a->file && bearer(caller->authorization, &token))
        decide_token(a, caller, token, ret);
    else if (a->file && caller->authorization.len > 0)
        refuse(ret, 401, "the bearer token is not one of this service");
    else if (caller->certificate)
        decide_certificate(a, caller, ret);
    else
        refuse(ret, 401, "a bearer token is needed");
}
