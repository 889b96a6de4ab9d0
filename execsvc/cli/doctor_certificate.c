#include "cli/doctor_certificate.h"

#include <fcntl.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "base/cleanup.h"

/* Days before the end at which one should act. */
#define EXPIRY_DAYS 14

static void close_bio(BIO **bio)
{
    BIO_free_all(*bio);
}

static void format_date(const ASN1_TIME *at, char *text, size_t size)
{
    struct tm tm;
    if (ASN1_TIME_to_tm(at, &tm) != 1 || strftime(text, size, "%Y-%m-%d", &tm) == 0)
        (void)snprintf(text, size, "?");
}

static void check_dates(struct doctor *d, const char *what, const char *file, X509 *certificate)
{
    char from[32], to[32];
    time_t soon = time(NULL) + (time_t)EXPIRY_DAYS * 86400;
    format_date(X509_get0_notBefore(certificate), from, sizeof from);
    format_date(X509_get0_notAfter(certificate), to, sizeof to);
    if (X509_cmp_current_time(X509_get0_notBefore(certificate)) > 0)
        doctor_problem(d, "is the clock of this machine, or of who signed it, wrong?",
                       "%s %s is not valid before %s", what, file, from);
    else if (X509_cmp_current_time(X509_get0_notAfter(certificate)) < 0)
        doctor_problem(d, "get a new one; if it should be valid, check the clock",
                       "%s %s has expired on %s", what, file, to);
    else if (X509_cmp_time(X509_get0_notAfter(certificate), &soon) < 0)
        doctor_warning(d, "get a new one soon", "%s %s expires on %s", what, file, to);
    else
        doctor_ok(d, "%s %s is valid until %s", what, file, to);
}

/* The first certificate of a PEM file, or NULL with what is wrong reported. */
static X509 *load(struct doctor *d, const char *what, const char *file)
{
    _cleanup_(close_bio) BIO *bio = BIO_new_file(file, "re");
    if (!bio) {
        doctor_problem(d, "correct the name or its permissions", "%s %s cannot be read: %s", what,
                       file, strerror(errno));
        return NULL;
    }
    X509 *certificate = PEM_read_bio_X509(bio, NULL, NULL, NULL);
    if (!certificate)
        doctor_problem(d, "it must hold -----BEGIN CERTIFICATE-----",
                       "%s %s has no certificate in PEM form", what, file);
    return certificate;
}

/* An empty pass phrase instead of a question on the terminal. */
static int no_phrase(char *buffer, int size, int writing, void *context)
{
    return 0;
}

static void check_key(struct doctor *d, X509 *certificate, const char *file)
{
    struct stat st;
    _cleanup_(close_bio) BIO *bio = BIO_new_file(file, "re");
    if (!bio || stat(file, &st) < 0) {
        doctor_problem(d, "correct the name or its permissions", "the key %s cannot be read: %s",
                       file, strerror(errno));
        return;
    }
    if (st.st_mode & 077)
        doctor_warning(d, "chmod 600 it", "the key %s can be read by others", file);
    EVP_PKEY *key = PEM_read_bio_PrivateKey(bio, NULL, no_phrase, NULL);
    if (!key)
        doctor_problem(d, "it must be a PEM key without a pass phrase",
                       "the key %s cannot be understood", file);
    else if (certificate && X509_check_private_key(certificate, key) != 1)
        doctor_problem(d, "name the key that the certificate was made for",
                       "the key %s does not fit the client certificate", file);
    else
        doctor_ok(d, "the key %s fits", file);
    EVP_PKEY_free(key);
}

void doctor_check_certificates(struct doctor *d)
{
    const struct client_settings *s = &d->cli->settings;
    if (s->ca_file) {
        X509 *authority = load(d, "the CA", s->ca_file);
        if (authority)
            check_dates(d, "the CA", s->ca_file, authority);
        X509_free(authority);
    }
    if (s->cert_file) {
        X509 *certificate = load(d, "the client certificate", s->cert_file);
        if (certificate)
            check_dates(d, "the client certificate", s->cert_file, certificate);
        check_key(d, certificate, s->key_file ? s->key_file : s->cert_file);
        X509_free(certificate);
    }
}
