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

/* The tokens that were shown or issued last: whose signature comes is most likely one of them. */
#define RECENT_TOKENS 1024

/* Tokens that are computed in search of the one that signed a request, of whichever workspace: 1 us
 * each, on the loop. So many for one request, and in a second. Stops signatures of nobody from
 * keeping the loop busy. */
#define SEARCH_MAX 8192

struct access {
    char *file; /* NULL: none */
    int (*open)(void *context);
    void *context;
    bool certificates;
    struct grants grants;
    struct stat stat; /* of the file that grants is of */
    bool broken;      /* the file cannot be read or is wrong */
    char error[FAILURE_TEXT_MAX];
    struct failures *failures;   /* of tokens */
    struct failures *signatures; /* of theirs */
    bool issues;
    struct access_issuing issuing;
    char *recent[RECENT_TOKENS]; /* the last one first; then NULL */
    unsigned search_left;        /* that may be computed, */
    uint64_t search_ns;          /* as it was then */
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
        a->signatures = failures_new();
        a->file = options->file ? strdup(options->file) : NULL;
        r = a->failures && a->signatures && (a->file || !options->file) ? 0 : -ENOMEM;
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
    failures_free(a->signatures);
    for (size_t i = 0; i < RECENT_TOKENS; i++)
        free(a->recent[i]);
    OPENSSL_cleanse(&a->issuing.key, sizeof a->issuing.key);
    free(a->file);
    free(a);
}

void access_issue_tokens(struct access *a, const struct access_issuing *issuing)
{
    a->issuing = *issuing;
    a->issues = true;
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
    log_info("access file %s: %zu grant%s", a->file, grants.count, grants.count == 1 ? "" : "s");
    return true;
}

bool access_stands(const struct access *a, const struct grant *grant)
{
    if (grant_is_over(grant, time(NULL)))
        return false;
    if (grant->issuer)
        return access_stands(a, grant->issuer);
    if (a->broken ||
        (!grant->has_token && !grant->certificate && !grant->has_user && !grant->loopback))
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

static bool is_counted_out(const struct failures *f, const struct access_caller *caller,
                           const char *what, struct access_decision *d)
{
    d->retry_s = failures_wait(f, caller->address, clock_monotonic_ns());
    if (d->retry_s > 0)
        refuse(d, 429, "too many a wrong %s has come from this address", what);
    return d->retry_s > 0;
}

/* After it was compared, so that nobody's right one is refused for what others did. */
static void refuse_wrong(struct failures *f, const struct access_caller *caller,
                         const uint8_t digest[GRANT_TOKEN_DIGEST_SIZE], const char *what,
                         struct access_decision *d)
{
    uint64_t part;
    if (is_counted_out(f, caller, what, d))
        return;
    memcpy(&part, digest, sizeof part);
    failures_note(f, caller->address, part, clock_monotonic_ns());
    refuse(d, 401, "the %s is not one of this service", what);
}

/* Whose credential is right may still lack something. */
static bool is_refused(const struct access_caller *caller, const struct grant *line,
                       struct access_decision *d)
{
    if (grant_is_over(line, time(NULL)))
        refuse(d, 401, "the bearer token has expired; ask for a new one");
    else if (line->certificate && !has_name(caller, line->certificate))
        refuse(d, 403, "the bearer token goes with another client certificate");
    return d->status != 0;
}

static void decide_token(struct access *a, const struct access_caller *caller, struct bytes token,
                         const uint8_t digest[GRANT_TOKEN_DIGEST_SIZE], struct access_decision *d)
{
    struct grant *g = find_token(a, digest);
    if (!g)
        refuse_wrong(a->failures, caller, digest, "bearer token", d);
    else if (!is_refused(caller, g, d))
        let_in(d, grant_ref(g));
}

/* --- tokens that were issued --------------------------------------------------------------------
 */

static bool issues(const struct grant *line)
{
    return line->has_token || line->certificate;
}

/* The line of a token, if it is right; NULL: it is not. */
static struct grant *find_issuer(const struct access *a, struct bytes token,
                                 struct issued_claim *claim)
{
    if (!a->issues || !issued_parse(token, claim))
        return NULL;
    for (size_t i = 0; i < a->grants.count; i++) {
        struct grant *line = a->grants.list[i];
        if (issues(line) && strcmp(line->id, claim->id) == 0)
            return issued_verify(&a->issuing.key, line, claim, token) ? line : NULL;
    }
    return NULL;
}

/* Moves it to the front, or puts it there. Without memory it is not remembered. */
static void remember(struct access *a, struct bytes token)
{
    size_t i = 0;
    while (i < RECENT_TOKENS - 1 && a->recent[i] &&
           !bytes_equal(bytes_of_string(a->recent[i]), token))
        i++;
    char *text = a->recent[i];
    if (!text || !bytes_equal(bytes_of_string(text), token)) {
        free(text);
        text = strndup((const char *)token.data, token.len);
    }
    memmove(a->recent + 1, a->recent, i * sizeof *a->recent);
    a->recent[0] = text;
}

static void decide_issued(struct access *a, const struct access_caller *caller, struct bytes token,
                          const uint8_t digest[GRANT_TOKEN_DIGEST_SIZE], struct access_decision *d)
{
    struct issued_claim claim;
    struct grant *line = find_issuer(a, token, &claim);
    if (!line) {
        refuse_wrong(a->failures, caller, digest, "token of a workspace", d);
    } else if (!is_refused(caller, line, d)) {
        remember(a, token);
        let_in(d, grant_new_issued(line, bytes_of(claim.thread_id, claim.thread_id_len), claim.slot,
                                   GRANT_VERBS_ALL & ~GRANT_VERB(ADMIN), 0));
    }
}

int access_issue(struct access *a, struct grant *grant, struct bytes thread_id, uint32_t slot,
                 char ret[ISSUED_TEXT_MAX])
{
    struct grant *line = grant->issuer ? grant->issuer : grant;
    if (!issues(line) || grant->signed_for || !grant_covers(grant, thread_id))
        return -EACCES;
    if (!a->issues)
        return -EOPNOTSUPP;
    _cleanup_free_ char *words = issued_line(line);
    int r = words ? issued_make(&a->issuing.key, line->id, words, thread_id, slot, ret) : -ENOMEM;
    if (r == 0)
        remember(a, bytes_of_string(ret));
    return r;
}

/* --- signed requests ----------------------------------------------------------------------------
 */

/* One round over what lines and workspaces there are. */
struct search {
    const struct access *access;
    struct signature *signature;
    char *lines[GRANTS_MAX]; /* of those that issue; else NULL */
    unsigned left;
    bool exhausted;
    char found[ISSUED_TEXT_MAX]; /* or "" */
};

static bool search_workspace(void *context, struct bytes thread_id, uint32_t slot)
{
    struct search *s = context;
    const struct grants *grants = &s->access->grants;
    char token[ISSUED_TEXT_MAX];
    for (size_t i = 0; i < grants->count; i++) {
        if (!s->lines[i] || !grant_covers(grants->list[i], thread_id))
            continue;
        s->exhausted = s->left == 0;
        if (s->exhausted)
            return false;
        s->left--;
        if (issued_make(&s->access->issuing.key, grants->list[i]->id, s->lines[i], thread_id, slot,
                        token) == 0 &&
            signature_is_of(s->signature, token)) {
            memcpy(s->found, token, sizeof token);
            return false;
        }
    }
    return true;
}

/* 0: found, or not; -EAGAIN: not now; -ENOMEM. */
static int search(struct access *a, struct signature *signature, char ret[ISSUED_TEXT_MAX])
{
    uint64_t now = clock_monotonic_ns(), more = (now - a->search_ns) * SEARCH_MAX / NSEC_PER_SEC;
    if (!a->search_ns || more >= SEARCH_MAX - a->search_left)
        a->search_left = SEARCH_MAX;
    else
        a->search_left += (unsigned)more;
    a->search_ns = now;
    bool all = a->search_left == SEARCH_MAX;
    struct search *s = calloc(1, sizeof *s);
    if (!s)
        return -ENOMEM;
    s->access = a;
    s->signature = signature;
    s->left = a->search_left;
    for (size_t i = 0; i < a->grants.count; i++)
        if (issues(a->grants.list[i]))
            s->lines[i] = issued_line(a->grants.list[i]);
    a->issuing.workspaces(a->issuing.context, search_workspace, s);
    for (size_t i = 0; i < a->grants.count; i++)
        free(s->lines[i]);
    memcpy(ret, s->found, sizeof s->found);
    a->search_left = s->left;
    int r = s->exhausted && !all ? -EAGAIN : 0;
    free(s);
    return r;
}

/* Whose it is among those that were seen; that costs little. ret: or "". */
static void recall(const struct access *a, struct signature *signature, char ret[ISSUED_TEXT_MAX])
{
    size_t i = 0;
    while (i < RECENT_TOKENS && a->recent[i] && !signature_is_of(signature, a->recent[i]))
        i++;
    bool found = i < RECENT_TOKENS && a->recent[i];
    (void)snprintf(ret, ISSUED_TEXT_MAX, "%s", found ? a->recent[i] : "");
}

static void decide_signed(struct access *a, const struct access_caller *caller,
                          const struct signed_request *request,
                          const uint8_t digest[GRANT_TOKEN_DIGEST_SIZE], struct access_decision *d)
{
    char token[ISSUED_TEXT_MAX];
    struct issued_claim claim;
    if (request->expires && (uint64_t)time(NULL) >= request->expires) {
        refuse(d, 401, "the signature has expired");
        return;
    }
    _cleanup_signature_ struct signature *signature = signature_new(request);
    if (!signature) {
        refuse(d, 503, "out of memory");
        return;
    }
    recall(a, signature, token);
    if (!*token && is_counted_out(a->signatures, caller, "signature", d))
        return;
    if (!*token && a->issues && search(a, signature, token) < 0) {
        refuse(d, 503, "too many signatures of nobody known come in");
        d->retry_s = 1;
        return;
    }
    struct grant *line = *token ? find_issuer(a, bytes_of_string(token), &claim) : NULL;
    if (!line) {
        refuse_wrong(a->signatures, caller, digest, "signature", d);
    } else if (!is_refused(caller, line, d)) {
        struct bytes thread_id = bytes_of(claim.thread_id, claim.thread_id_len);
        remember(a, bytes_of_string(token));
        let_in(d, grant_new_issued(line, thread_id, claim.slot,
                                   GRANT_VERB(READ) | (request->writes ? GRANT_VERB(WRITE) : 0),
                                   (time_t)request->expires));
        if (d->grant)
            d->grant->signed_for = true;
    }
}

/* --- all ----------------------------------------------------------------------------------------
 */

static bool begins_with(struct bytes text, const char *prefix)
{
    size_t len = strlen(prefix);
    return text.len >= len && memcmp(text.data, prefix, len) == 0;
}

static void decide_bearer(struct access *a, const struct access_caller *caller, struct bytes token,
                          struct access_decision *d)
{
    uint8_t digest[GRANT_TOKEN_DIGEST_SIZE];
    struct signed_request request;
    if (a->broken) {
        refuse_all(d);
        return;
    }
    if (!grant_token_digest(token, digest))
        refuse(d, 503, "OpenSSL cannot compute SHA-256");
    else if (begins_with(token, ISSUED_PREFIX))
        decide_issued(a, caller, token, digest, d);
    else if (caller->gateway && signed_request_parse(token, &request))
        decide_signed(a, caller, &request, digest, d);
    else
        decide_token(a, caller, token, digest, d);
}

/* Without a token. */
static void decide_loopback(const struct access *a, struct access_decision *d)
{
    for (size_t i = 0; !a->broken && i < a->grants.count; i++) {
        struct grant *g = a->grants.list[i];
        if (g->loopback && !grant_is_over(g, time(NULL))) {
            let_in(d, grant_ref(g));
            return;
        }
    }
    if (a->broken)
        refuse_all(d);
    else
        refuse(d, 401, "a bearer token is needed");
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
        decide_bearer(a, caller, token, ret);
    else if (a->file && caller->authorization.len > 0)
        refuse(ret, 401, "the bearer token is not one of this service");
    else if (caller->certificate)
        decide_certificate(a, caller, ret);
    else if (a->file && caller->loopback)
        decide_loopback(a, ret);
    else
        refuse(ret, 401, "a bearer token is needed");
}
