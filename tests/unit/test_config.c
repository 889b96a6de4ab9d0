/* Default paths, the configuration file, precedence, and token files. */
#include "unit.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cleanup.h"
#include "config/config.h"
#include "config/paths.h"
#include "config/services.h"

#define NOBODY 65321 /* not nobody: that one may really have such a directory */

static char directory[] = "/tmp/berth-config-XXXXXX";

static const char *const variables[] = {
    "BERTH_URL",       "BERTH_SERVICE",  "BERTH_TOKEN",     "BERTH_TOKEN_FILE", "BERTH_CA_FILE",
    "BERTH_CERT_FILE", "BERTH_KEY_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME",  "XDG_STATE_HOME",
};

/* A path in the private directory; each call has its own memory, of a few. */
static const char *in_directory(const char *name)
{
    static char paths[8][128];
    static unsigned next;
    char *path = paths[next++ % ARRAY_SIZE(paths)];
    (void)snprintf(path, sizeof paths[0], "%s/%s", directory, name);
    return path;
}

static const char *write_file(const char *name, const char *text, mode_t mode)
{
    const char *path = in_directory(name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static int clean_environment(void **state)
{
    for (size_t i = 0; i < ARRAY_SIZE(variables); i++)
        (void)unsetenv(variables[i]);
    (void)setenv("HOME", directory, 1);
    (void)setenv("XDG_RUNTIME_DIR", directory, 1);
    (void)setenv("XDG_CONFIG_HOME", in_directory("none"), 1);
    return 0;
}

static int make_directory(void **state)
{
    return mkdtemp(directory) ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *where)
{
    return remove(path);
}

static int remove_directory(void **state)
{
    return nftw(directory, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

/* Every word is in the text. */
#define assert_says(failure, ...) says(&(failure), (const char *const[]){__VA_ARGS__, NULL})
static void says(const struct failure *f, const char *const *words)
{
    for (size_t i = 0; words[i]; i++)
        if (!strstr(f->text, words[i]))
            fail_msg("'%s' is not in: %s", words[i], f->text);
}

/* --- paths ----------------------------------------------------------------------------------- */

static void expect_path(int (*get)(char **, struct failure *), const char *expected)
{
    _cleanup_free_ char *path = NULL;
    struct failure f;
    if (get(&path, &f) < 0)
        fail_msg("%s", f.text);
    if (!expected)
        assert_null(path);
    else
        assert_string_equal(path, expected);
}

static void test_paths_of_root(void **state)
{
    if (geteuid() != 0)
        skip();
    (void)setenv("XDG_RUNTIME_DIR", "", 1);
    expect_path(paths_runtime_dir, "/run/berth");
    expect_path(paths_socket, "/run/berth/berthd.sock");
    expect_path(paths_default_url, "unix:/run/berth/berthd.sock");
    expect_path(paths_service_root, "/var/lib/berth");
    expect_path(paths_cache_dir, "/var/cache/berth");
    (void)setenv("XDG_RUNTIME_DIR", "relative", 1); /* ignored, as the specification wants */
    expect_path(paths_runtime_dir, "/run/berth");
    (void)setenv("XDG_RUNTIME_DIR", "/run/user/0", 1);
    expect_path(paths_default_url, "unix:/run/user/0/berth/berthd.sock");
}

/* In a child that is another user. cmocka's assertions do not work there: REQUIRE. */
static void as_nobody(void (*check)(void))
{
    if (geteuid() != 0)
        skip();
    pid_t pid = fork();
    if (pid == 0) {
        if (setgid(NOBODY) < 0 || setuid(NOBODY) < 0)
            _exit(2);
        check();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

#define REQUIRE(condition)                                                                \
    do {                                                                                  \
        if (!(condition)) {                                                               \
            (void)fprintf(stderr, "%s:%d: not so: %s\n", __func__, __LINE__, #condition); \
            _exit(1);                                                                     \
        }                                                                                 \
    } while (0)

static const char shared[] = "/tmp/berth-65321";

static void nobody_without_runtime_directory(void)
{
    struct failure f;
    char *path = NULL;
    struct stat st;
    (void)unsetenv("XDG_RUNTIME_DIR");
    REQUIRE(paths_default_url(&path, &f) == 0); /* it need not exist */
    REQUIRE(strcmp(path, "unix:/tmp/berth-65321/berthd.sock") == 0);
    free(path);
    REQUIRE(paths_make_socket_dir(&f) == 0);
    REQUIRE(lstat(shared, &st) == 0 && st.st_uid == NOBODY && (st.st_mode & 07777) == 0700);
    REQUIRE(paths_make_socket_dir(&f) == 0); /* twice is fine */
    REQUIRE(paths_default_url(&path, &f) == 0);
    free(path);

    REQUIRE(chmod(shared, 0755) == 0);
    path = NULL;
    REQUIRE(paths_default_url(&path, &f) == -EPERM && !path);
    REQUIRE(strstr(f.text, "mode 0700") && strstr(f.text, shared));
    REQUIRE(paths_make_socket_dir(&f) == -EPERM);
    REQUIRE(rmdir(shared) == 0);

    /* A link is not followed, wherever it leads. */
    char target[] = "/tmp/berth-target-XXXXXX";
    REQUIRE(mkdtemp(target));
    REQUIRE(symlink(target, shared) == 0);
    int refused = paths_runtime_dir(&path, &f);
    int not_made = paths_make_socket_dir(&f);
    REQUIRE(unlink(shared) == 0 && rmdir(target) == 0);
    REQUIRE(refused == -EPERM && not_made == -EPERM);

    (void)setenv("HOME", "/home/x", 1);
    REQUIRE(paths_service_root(&path, &f) == 0);
    REQUIRE(strcmp(path, "/home/x/.local/state/berth") == 0);
    free(path);
    (void)setenv("XDG_STATE_HOME", "/state", 1);
    REQUIRE(paths_service_root(&path, &f) == 0);
    REQUIRE(strcmp(path, "/state/berth") == 0);
    free(path);
}

static void nobody_finds_a_directory_of_root(void)
{
    struct failure f;
    char *path = NULL;
    (void)unsetenv("XDG_RUNTIME_DIR");
    REQUIRE(paths_default_url(&path, &f) == -EPERM && !path);
    REQUIRE(paths_make_socket_dir(&f) == -EPERM);
}

static int clean_shared(void **state)
{
    if (geteuid() == 0) {
        (void)unlink(shared); /* what a failed run left */
        (void)rmdir(shared);
    }
    return clean_environment(state);
}

static void test_shared_runtime_directory(void **state)
{
    as_nobody(nobody_without_runtime_directory);
    assert_int_equal(mkdir(shared, 0700), 0); /* root's, whom that user need not trust */
    as_nobody(nobody_finds_a_directory_of_root);
}

static void test_socket_directory(void **state)
{
    struct failure f;
    struct stat st;
    mode_t old = umask(0);
    assert_int_equal(paths_make_socket_dir(&f), 0);
    (void)umask(old);
    assert_int_equal(stat(in_directory("berth"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    (void)setenv("XDG_RUNTIME_DIR", in_directory("missing"), 1);
    assert_int_equal(paths_make_socket_dir(&f), -ENOENT);
    assert_says(f, "missing/berth", "XDG_RUNTIME_DIR");
}

static void test_absolute(void **state)
{
    static const struct {
        const char *path;
        const char *base;
        const char *expected;
    } cases[] = {{"/a", "/b", "/a"},
                 {"a", "/b", "/b/a"},
                 {"~/a", "/b", "/home/x/a"},
                 {"~a", "/b", "/b/~a"},
                 {"../a", "/b", "/b/../a"}};
    (void)setenv("HOME", "/home/x", 1);
    struct failure f;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        _cleanup_free_ char *path = NULL;
        assert_int_equal(paths_absolute(cases[i].path, cases[i].base, &path, &f), 0);
        assert_string_equal(path, cases[i].expected);
    }
    assert_int_equal(chdir(directory), 0);
    _cleanup_free_ char *path = NULL;
    assert_int_equal(paths_absolute("a", NULL, &path, &f), 0);
    assert_string_equal(path, in_directory("a"));
    assert_int_equal(chdir("/"), 0);
}

static void test_configuration_file(void **state)
{
    bool system_wide = access("/etc/berth/berth.json", F_OK) == 0;
    if (!system_wide)
        expect_path(paths_config_file, NULL);
    (void)unsetenv("XDG_CONFIG_HOME");
    assert_int_equal(mkdir(in_directory(".config"), 0700), 0);
    assert_int_equal(mkdir(in_directory(".config/berth"), 0700), 0);
    const char *home = write_file(".config/berth/berth.json", "{}", 0644);
    expect_path(paths_config_file, home);
    (void)setenv("XDG_CONFIG_HOME", in_directory("none"), 1);
    if (!system_wide)
        expect_path(paths_config_file, NULL);
    assert_int_equal(unlink(home), 0);
}

/* --- settings --------------------------------------------------------------------------------- */

static void test_client_defaults(void **state)
{
    _cleanup_client_settings_ struct client_settings s = {0};
    struct failure f;
    struct client_flags flags = {0};
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    char expected[128];
    (void)snprintf(expected, sizeof expected, "unix:%s/berth/berthd.sock", directory);
    assert_string_equal(s.url, expected);
    assert_null(s.token);
    assert_null(s.token_file);
    assert_null(s.ca_file);
    assert_null(s.cert_file);
    assert_null(s.key_file);
    assert_int_equal(s.connect_timeout_ms, 0);
    assert_int_equal(s.symlinks, LINK_CONTAIN);
    assert_string_equal(s.system_prefixes, LINK_PREFIXES_DEFAULT);
}

static void load_client(const struct client_flags *flags, struct client_settings *s)
{
    struct failure f;
    client_settings_release(s);
    if (client_settings_load(flags, s, &f) < 0)
        fail_msg("%s", f.text);
}

static void test_client_precedence(void **state)
{
    const char *file = write_file("all.json",
                                  "{\"client\": {\"url\": \"unix:/file\", \"token_file\": \"t1\","
                                  "\"ca_file\": \"file.pem\", \"cert_file\": \"/abs/cert.pem\","
                                  "\"key_file\": \"~/key.pem\", \"connect_timeout\": 2.5}}",
                                  0644);
    const char *token1 = write_file("t1", "from-file\n", 0600);
    const char *token2 = write_file("t2", "from-environment\n", 0600);
    const char *token3 = write_file("t3", "# comment\n\n  from-flag \r\nsecond\n", 0600);
    _cleanup_client_settings_ struct client_settings s = {0};
    struct client_flags flags = {.config_file = file};

    load_client(&flags, &s);
    assert_string_equal(s.url, "unix:/file");
    assert_string_equal(s.token, "from-file");
    assert_string_equal(s.token_file, token1); /* relative to the file's directory */
    assert_string_equal(s.ca_file, in_directory("file.pem"));
    assert_string_equal(s.cert_file, "/abs/cert.pem");
    assert_string_equal(s.key_file, in_directory("key.pem"));
    assert_int_equal(s.connect_timeout_ms, 2500);

    (void)setenv("BERTH_URL", "unix:/environment", 1);
    (void)setenv("BERTH_TOKEN_FILE", token2, 1);
    (void)setenv("BERTH_CA_FILE", "/environment.pem", 1);
    (void)setenv("BERTH_CERT_FILE", "", 1); /* empty is unset */
    load_client(&flags, &s);
    assert_string_equal(s.url, "unix:/environment");
    assert_string_equal(s.token, "from-environment");
    assert_string_equal(s.token_file, token2);
    assert_string_equal(s.ca_file, "/environment.pem");
    assert_string_equal(s.cert_file, "/abs/cert.pem");

    (void)setenv("BERTH_TOKEN", "direct", 1);
    load_client(&flags, &s);
    assert_string_equal(s.token, "direct");
    assert_null(s.token_file);

    flags.url = "unix:/flag";
    flags.token_file = token3;
    flags.ca_file = "flag.pem";
    flags.connect_timeout_ms = 7;
    assert_int_equal(chdir("/"), 0);
    load_client(&flags, &s);
    assert_string_equal(s.url, "unix:/flag");
    assert_string_equal(s.token, "from-flag");
    assert_string_equal(s.token_file, token3);
    assert_string_equal(s.ca_file, "//flag.pem"); /* relative to the working directory */
    assert_int_equal(s.connect_timeout_ms, 7);

    struct stream_options o = client_settings_stream(&s);
    assert_string_equal(o.url, "unix:/flag");
    assert_string_equal(o.token, "from-flag");
    assert_int_equal(o.connect_timeout_ms, 7);
}

static void test_client_links(void **state)
{
    const char *file = write_file("berth.json",
                                  "{\"client\": {\"symlinks\": \"refuse\","
                                  " \"system_prefixes\": [\"/usr\", \"/lib*\"]}}",
                                  0644);
    _cleanup_client_settings_ struct client_settings s = {0};
    struct client_flags flags = {.config_file = file};
    load_client(&flags, &s);
    assert_int_equal(s.symlinks, LINK_REFUSE);
    assert_string_equal(s.system_prefixes, "/usr:/lib*");
    flags.symlinks = "contain+translate";
    flags.system_prefixes = "/opt";
    load_client(&flags, &s);
    assert_int_equal(s.symlinks, LINK_TRANSLATE);
    assert_string_equal(s.system_prefixes, "/opt");
}

static void test_client_errors(void **state)
{
    static const struct {
        const char *text;
        const char *words[4];
    } cases[] = {
        {"", {"bad.json:1:", "not valid JSON"}},
        {"{\"client\": {}, \"client\": {}}", {"duplicate"}},
        {"[]", {"one JSON object"}},
        {"{\"clients\": {}}", {"unknown key clients", "\"client\" and \"service\""}},
        {"{\"client\": []}", {"client must be an object"}},
        {"{\"client\": {\"tokenfile\": \"x\"}}",
         {"unknown key client.tokenfile", "url, token_file, ca_file"}},
        {"{\"service\": {\"x\\u001b\": 1}}", {"unknown key service.x\\x1b"}},
        {"{\"client\": {\"url\": 3}}", {"client.url must be a string"}},
        {"{\"client\": {\"url\": \"\"}}", {"client.url must be a string that is not empty"}},
        {"{\"client\": {\"url\": \"unix:/a\\u0000b\"}}", {"not valid JSON"}},
        {"{\"client\": {\"url\": \"http://example.org:1\"}}", {"bad.json", "this machine"}},
        {"{\"client\": {\"ca_file\": []}}", {"client.ca_file must be a string"}},
        {"{\"client\": {\"connect_timeout\": \"5\"}}", {"client.connect_timeout must be a number"}},
        {"{\"client\": {\"connect_timeout\": 0}}", {"client.connect_timeout", "seconds"}},
        {"{\"client\": {\"connect_timeout\": 1e9}}", {"client.connect_timeout", "3600"}},
        {"{\"client\": {\"symlinks\": \"yes\"}}", {"bad.json: client.symlinks=yes", "contain"}},
        {"{\"client\": {\"symlinks\": true}}", {"client.symlinks must be a string"}},
        {"{\"client\": {\"system_prefixes\": \"/usr\"}}",
         {"client.system_prefixes must be an array"}},
        {"{\"client\": {\"system_prefixes\": []}}", {"client.system_prefixes", "at least one"}},
        {"{\"client\": {\"system_prefixes\": [\"/usr\", 1]}}", {"client.system_prefixes"}},
        {"{\"client\": {\"system_prefixes\": [\"/a:/b\"]}}", {"client.system_prefixes must"}},
        {"{\"client\": {\"system_prefixes\": [\"/usr\", \"usr\"]}}",
         {"bad.json: client.system_prefixes=/usr:usr", "absolute"}},
    };
    struct failure f;
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct client_flags flags = {.config_file = write_file("bad.json", cases[i].text, 0644)};
        struct client_settings s = {.connect_timeout_ms = 77};
        if (client_settings_load(&flags, &s, &f) != -EINVAL)
            fail_msg("accepted: %s", cases[i].text);
        assert_int_equal(s.connect_timeout_ms, 77); /* untouched */
        for (size_t k = 0; k < ARRAY_SIZE(cases[i].words) && cases[i].words[k]; k++)
            assert_says(f, "bad.json", cases[i].words[k]);
    }
    struct client_settings s;
    struct client_flags flags = {.config_file = in_directory("absent.json")};
    assert_int_equal(client_settings_load(&flags, &s, &f), -ENOENT);
    assert_says(f, "absent.json", "No such file");
    flags.config_file = directory;
    assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
    flags = (struct client_flags){.url = "nonsense"};
    assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
    assert_says(f, "nonsense", "unix:/PATH");
    (void)setenv("BERTH_URL", "nonsense", 1);
    flags.url = NULL;
    assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
    assert_says(f, "BERTH_URL", "nonsense");
}

static void test_token_files(void **state)
{
    struct failure f;
    _cleanup_token_list_ struct token_list l = {0};
    const char *file = write_file("tokens", "# first line\n\n one \n\ttwo\r\n#three\nthree", 0400);
    assert_int_equal(token_list_load(file, &l, &f), 0);
    assert_int_equal(l.count, 3);
    assert_string_equal(l.tokens[0], "one");
    assert_string_equal(l.tokens[1], "two");
    assert_string_equal(l.tokens[2], "three");
    token_list_release(&l);
    assert_int_equal(l.count, 0);

    static const mode_t open_modes[] = {0640, 0604, 0620, 0602, 0610, 0644, 0666};
    for (size_t i = 0; i < ARRAY_SIZE(open_modes); i++) {
        file = write_file("open", "secret\n", open_modes[i]);
        assert_int_equal(token_list_load(file, &l, &f), -EACCES);
        assert_says(f, file, "other users", "chmod 600");
        assert_null(strstr(f.text, "secret"));
    }
    static const struct {
        const char *text;
        const char *word;
    } bad[] = {{"", "no token"},
               {"# only\n\n", "no token"},
               {"secret two\n", "line 1 is not a token"},
               {"a\nsecret\001\n", "line 2 is not a token"},
               {"s\303\251cret\n", "line 1 is not a token"}};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        file = write_file("bad", bad[i].text, 0600);
        assert_int_equal(token_list_load(file, &l, &f), -EINVAL);
        assert_says(f, file, bad[i].word);
        assert_null(strstr(f.text, "cret"));
    }
    static char text[70000];
    memset(text, 'x', CONFIG_TOKEN_MAX);
    assert_int_equal(token_list_load(write_file("longest", text, 0600), &l, &f), 0);
    token_list_release(&l);
    memset(text, 'x', CONFIG_TOKEN_MAX + 1);
    assert_int_equal(token_list_load(write_file("long", text, 0600), &l, &f), -EINVAL);
    assert_says(f, "longer than 1024");
    memset(text, '\n', sizeof text - 1);
    assert_int_equal(token_list_load(write_file("huge", text, 0600), &l, &f), -EINVAL);
    assert_says(f, "larger than 64 KiB");
    for (size_t i = 0; i + 1 < 2 * (CONFIG_TOKENS_MAX + 1); i += 2)
        memcpy(text + i, "t\n", 2);
    text[2 * (CONFIG_TOKENS_MAX + 1)] = '\0';
    assert_int_equal(token_list_load(write_file("many", text, 0600), &l, &f), -EINVAL);
    assert_says(f, "more than 1024");
    assert_int_equal(token_list_load("/dev/zero", &l, &f), -EACCES);
    assert_int_equal(token_list_load(directory, &l, &f), -EINVAL);
    assert_says(f, "directory");
    assert_int_equal(token_list_load(in_directory("absent"), &l, &f), -ENOENT);
    assert_int_equal(l.count, 0);
}

static void test_token_from_a_pipe(void **state)
{
    int ends[2];
    char path[32];
    struct failure f;
    _cleanup_token_list_ struct token_list l = {0};
    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "piped\n", 6), 6);
    (void)close(ends[1]);
    (void)snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
    assert_int_equal(token_list_load(path, &l, &f), 0);
    assert_string_equal(l.tokens[0], "piped");
    (void)close(ends[0]);
}

static void test_service_settings(void **state)
{
    const char *file = write_file(
        "service.json",
        "{\"service\": {\"root\": \"r\", \"listen\": [\"unix:/a\", \"https://0.0.0.0:0\"],"
        "\"access_file\": \"access\", \"keeper_socket\": \"keeper.sock\", \"tls_cert\": \"c.pem\", "
        "\"tls_key\": \"k.pem\","
        "\"tls_client_ca\": \"/ca.pem\", \"log_level\": \"debug\", \"watch\": "
        "\"inotify\",\"keep_verdicts\": 0}, "
        "\"client\": {}}",
        0644);
    _cleanup_service_settings_ struct service_settings s = {0};
    struct failure f;
    struct service_flags flags = {.config_file = file};
    if (service_settings_load(&flags, &s, &f) < 0)
        fail_msg("%s", f.text);
    assert_string_equal(s.config_file, file);
    assert_string_equal(s.root, in_directory("r"));
    assert_int_equal(s.listen_count, 2);
    assert_string_equal(s.listen[0], "unix:/a");
    assert_string_equal(s.listen[1], "https://0.0.0.0:0");
    assert_string_equal(s.access_file, in_directory("access"));
    assert_string_equal(s.keeper_socket, in_directory("keeper.sock"));
    assert_string_equal(s.tls_cert, in_directory("c.pem"));
    assert_string_equal(s.tls_key, in_directory("k.pem"));
    assert_string_equal(s.tls_client_ca, "/ca.pem");
    assert_int_equal(s.log_level, LOG_LEVEL_DEBUG);
    assert_int_equal(s.watch, CONFIG_WATCH_INOTIFY);
    assert_int_equal(s.keep_verdicts_s, 0);
    service_settings_release(&s);

    const char *const listen[] = {"unix:/flag"};
    flags.root = "/flag";
    flags.listen = listen;
    flags.listen_count = 1;
    flags.log_level = "error";
    flags.watch = "none";
    flags.keep_verdicts = "31536000";
    assert_int_equal(service_settings_load(&flags, &s, &f), 0);
    assert_string_equal(s.root, "/flag");
    assert_int_equal(s.listen_count, 1); /* instead of the file's */
    assert_string_equal(s.listen[0], "unix:/flag");
    assert_int_equal(s.log_level, LOG_LEVEL_ERROR);
    assert_int_equal(s.watch, CONFIG_WATCH_NONE);
    assert_int_equal(s.keep_verdicts_s, 31536000);
    service_settings_release(&s);

    assert_int_equal(service_settings_load(&(struct service_flags){0}, &s, &f), 0);
    assert_non_null(s.root);
    assert_int_equal(s.listen_count, 0);
    assert_int_equal(s.log_level, LOG_LEVEL_INFO);
    assert_int_equal(s.watch, CONFIG_WATCH_AUTO);
    assert_int_equal(s.keep_verdicts_s, 3600);

    static const struct {
        const char *text;
        const char *word;
    } bad[] = {
        {"{\"service\": {\"listen\": \"unix:/a\"}}", "service.listen must be an array"},
        {"{\"service\": {\"listen\": []}}", "service.listen must be an array"},
        {"{\"service\": {\"listen\": [1]}}", "service.listen must be an array"},
        {"{\"service\": {\"listen\": [\"exec:x\"]}}", "cannot listen there"},
        {"{\"service\": {\"listen\": [\"http://0.0.0.0:80\"]}}", "this machine alone"},
        {"{\"service\": {\"log_level\": \"loud\"}}", "service.log_level must be error"},
        {"{\"service\": {\"log_level\": 1}}", "service.log_level must be a string"},
        {"{\"service\": {\"watch\": \"kqueue\"}}", "service.watch must be auto, fanotify"},
        {"{\"service\": {\"keep_verdicts\": -1}}", "service.keep_verdicts must be a number of"},
        {"{\"service\": {\"keep_verdicts\": 1.5}}", "service.keep_verdicts must be a number of"},
        {"{\"service\": {\"url\": \"unix:/a\"}}", "unknown key service.url"},
    };
    struct service_settings untouched = {.listen_count = 77};
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        flags = (struct service_flags){.config_file = write_file("bad.json", bad[i].text, 0644)};
        if (service_settings_load(&flags, &untouched, &f) != -EINVAL)
            fail_msg("accepted: %s", bad[i].text);
        assert_says(f, "bad.json", bad[i].word);
        assert_int_equal(untouched.listen_count, 77);
    }
    flags = (struct service_flags){.log_level = "loud"};
    assert_int_equal(service_settings_load(&flags, &untouched, &f), -EINVAL);
    assert_says(f, "--log-level must be error, warning, info or debug");
    flags = (struct service_flags){.watch = "no"};
    assert_int_equal(service_settings_load(&flags, &untouched, &f), -EINVAL);
    assert_says(f, "--watch must be auto, fanotify, inotify or none");
    static const char *const no_numbers[] = {"", "1h", "-1", "31536001", "99999999999999999999"};
    for (size_t i = 0; i < ARRAY_SIZE(no_numbers); i++) {
        flags = (struct service_flags){.keep_verdicts = no_numbers[i]};
        assert_int_equal(service_settings_load(&flags, &untouched, &f), -EINVAL);
        assert_says(f, "--keep-verdicts must be a number of seconds, 0 to 31536000");
    }
    const char *many[CONFIG_LISTEN_MAX + 1];
    for (size_t i = 0; i < ARRAY_SIZE(many); i++)
        many[i] = "unix:/a";
    flags = (struct service_flags){.listen = many, .listen_count = ARRAY_SIZE(many)};
    assert_int_equal(service_settings_load(&flags, &untouched, &f), -EINVAL);
    assert_says(f, "more than 16");
}

static void test_services(void **state)
{
    struct failure f;
    struct client_settings s;
    (void)write_file("t", "secret\n", 0600);
    (void)write_file("other", "another\n", 0600);
    const char *file = write_file(
        "services.json",
        "{\"client\": {\"url\": \"unix:/default\", \"token_file\": \"other\", \"services\": {"
        "\"lab\": {\"url\": \"https://lab:1\", \"token_file\": \"t\", \"ca_file\": \"ca\"},"
        "\"a.B_c-9\": {\"url\": \"exec:ssh x\"}}}}",
        0600);
    struct client_flags flags = {.config_file = file, .service = "lab"};
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    assert_string_equal(s.url, "https://lab:1");
    assert_string_equal(s.service, "lab");
    assert_string_equal(s.token, "secret");
    assert_string_equal(s.ca_file, in_directory("ca"));
    assert_null(s.cert_file);
    client_settings_release(&s);

    /* Nothing of what is for others is shown to one that has no credentials. */
    (void)setenv("BERTH_TOKEN", "environment", 1);
    (void)setenv("BERTH_CA_FILE", "/ca", 1);
    flags.service = "a.B_c-9";
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    assert_null(s.token);
    assert_null(s.token_file);
    assert_null(s.ca_file);
    client_settings_release(&s);
    flags.token_file = in_directory("other");
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    assert_string_equal(s.token, "another");
    client_settings_release(&s);
    flags.token_file = NULL;

    /* Flags beat the environment; two of one kind contradict each other. */
    (void)setenv("BERTH_SERVICE", "lab", 1);
    flags.service = NULL;
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    assert_string_equal(s.url, "https://lab:1");
    client_settings_release(&s);
    flags.url = "unix:/flag";
    assert_int_equal(client_settings_load(&flags, &s, &f), 0);
    assert_string_equal(s.url, "unix:/flag");
    assert_null(s.service);
    client_settings_release(&s);
    flags.service = "lab";
    assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
    flags = (struct client_flags){.config_file = file};
    (void)setenv("BERTH_URL", "unix:/variable", 1);
    assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
    assert_says(f, "BERTH_URL", "BERTH_SERVICE");
    (void)unsetenv("BERTH_SERVICE");
    flags.service = "lba";
    assert_int_equal(client_settings_load(&flags, &s, &f), -ENOENT);
    assert_says(f, "lba", "lab, a.B_c-9");

    _cleanup_service_list_ struct service_list l = {0};
    assert_int_equal(service_list_load(file, &l, &f), 0);
    assert_int_equal(l.count, 2);
    assert_string_equal(l.entries[0].name, "lab");
    assert_string_equal(l.entries[1].url, "exec:ssh x");
    const struct client_settings base = {.system_prefixes = (char[]){"/usr"}, .persist_s = 7};
    assert_int_equal(client_settings_of_service(&base, service_list_find(&l, "lab"), &s, &f), 0);
    assert_string_equal(s.token, "secret");
    assert_string_equal(s.system_prefixes, "/usr");
    assert_int_equal(s.persist_s, 7);
    client_settings_release(&s);
}

static void test_service_errors(void **state)
{
    static const struct {
        const char *services, *says;
    } bad[] = {
        {"[]", "must be an object"},
        {"{\"x\": 1}", "client.services.x must be an object"},
        {"{\"x\": {}}", "client.services.x has no \"url\""},
        {"{\"x\": {\"url\": \"ftp://x\"}}", "client.services.x.url"},
        {"{\"x\": {\"url\": \"unix:/x\", \"persist\": 1}}",
         "unknown key client.services.x.persist"},
        {"{\"x\": {\"url\": \"unix:/x\", \"ca_file\": 1}}", "client.services.x.ca_file"},
        {"{\"all\": {\"url\": \"unix:/x\"}}", "\"all\" is no name"},
        {"{\".x\": {\"url\": \"unix:/x\"}}", "no name"},
        {"{\"\": {\"url\": \"unix:/x\"}}", "no name"},
        {"{\"a:b\": {\"url\": \"unix:/x\"}}", "no name"},
        {"{\"0123456789012345678901234567890123456789012345678901234567890123\": {}}", "no name"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
        char text[256];
        struct failure f;
        struct client_settings s;
        (void)snprintf(text, sizeof text, "{\"client\": {\"services\": %s}}", bad[i].services);
        const struct client_flags flags = {.config_file = write_file("bad.json", text, 0600)};
        assert_int_equal(client_settings_load(&flags, &s, &f), -EINVAL);
        assert_says(f, bad[i].says, "bad.json");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_paths_of_root, clean_environment),
        cmocka_unit_test_setup_teardown(test_shared_runtime_directory, clean_shared, clean_shared),
        cmocka_unit_test_setup(test_socket_directory, clean_environment),
        cmocka_unit_test_setup(test_absolute, clean_environment),
        cmocka_unit_test_setup(test_configuration_file, clean_environment),
        cmocka_unit_test_setup(test_client_defaults, clean_environment),
        cmocka_unit_test_setup(test_client_precedence, clean_environment),
        cmocka_unit_test_setup(test_services, clean_environment),
        cmocka_unit_test_setup(test_service_errors, clean_environment),
        cmocka_unit_test_setup(test_client_links, clean_environment),
        cmocka_unit_test_setup(test_client_errors, clean_environment),
        cmocka_unit_test_setup(test_token_files, clean_environment),
        cmocka_unit_test_setup(test_token_from_a_pipe, clean_environment),
        cmocka_unit_test_setup(test_service_settings, clean_environment),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
