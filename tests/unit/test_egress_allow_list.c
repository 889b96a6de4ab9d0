/* The list of what a workspace may reach: how entries are read, what they admit, and which
 * addresses are nobody's business. */
#include "unit.h"

#include "base/cleanup.h"
#include "egress/allow_list.h"

static struct allow_list *list_of(const char *const *entries)
{
    struct allow_list *list;
    struct failure failure;
    assert_int_equal(allow_list_new(&list), 0);
    for (; *entries; entries++)
        assert_int_equal(allow_list_add(list, bytes_of_string(*entries), &failure), 0);
    return list;
}

static bool admits(const char *entry, const char *host, uint16_t port)
{
    struct allow_list *list = list_of((const char *const[]){entry, NULL});
    struct allow_host parsed;
    const char *why;
    assert_int_equal(allow_host_parse(bytes_of_string(host), &parsed, &why), 0);
    bool result = allow_list_admits(list, &parsed, port, NULL);
    allow_list_free(list);
    return result;
}

static void names(void **state)
{
    assert_true(admits("example.org:443", "example.org", 443));
    assert_true(admits("Example.ORG.:443", "example.org", 443));
    assert_true(admits("example.org:443", "EXAMPLE.org.", 443));
    assert_false(admits("example.org:443", "example.org", 80));
    assert_true(admits("example.org:*", "example.org", 80));
    assert_false(admits("example.org:443", "a.example.org", 443));
    assert_false(admits("example.org:443", "notexample.org", 443));
    assert_false(admits("example.org:443", "example.org.evil.test", 443));
    assert_false(admits("example.org:443", "org", 443));
}

static void stars(void **state)
{
    assert_true(admits("*.example.org:443", "a.example.org", 443));
    assert_true(admits("*.example.org:443", "a.b.example.org", 443));
    assert_false(admits("*.example.org:443", "example.org", 443));
    assert_false(admits("*.example.org:443", "aexample.org", 443));
    assert_false(admits("*.example.org:443", "a.example.org.evil.test", 443));
    assert_true(admits("s3.*.example.org:443", "s3.eu.example.org", 443));
    assert_false(admits("s3.*.example.org:443", "s3.a.b.example.org", 443));
    assert_false(admits("s3.*.example.org:443", "s3.example.org", 443));
    assert_true(admits("*.s3.*.example.org:443", "a.b.s3.eu.example.org", 443));
    assert_true(admits("*.*.example.org:443", "a.b.example.org", 443));
    assert_false(admits("*.*.example.org:443", "b.example.org", 443));
    assert_true(admits("*:443", "localhost", 443));
    assert_true(admits("*:443", "a.b", 443));
    assert_true(admits("a.*:443", "a.b", 443));
    assert_false(admits("a.*:443", "a.b.c", 443));
}

static void other_scripts(void **state)
{
    assert_true(admits("*.b\xc3\xbc\x63her.example:443", "www.xn--bcher-kva.example", 443));
    assert_true(admits("xn--bcher-kva.example:443", "B\xc3\x9c\x43HER.example", 443));
    /* Full-width digits are digits. */
    assert_false(admits("*:443", "\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1", 443));
    assert_true(admits("127.0.0.1:443", "\xef\xbc\x91\xef\xbc\x92\xef\xbc\x97.0.0.1", 443));
}

static void addresses(void **state)
{
    assert_false(admits("*:*", "192.0.2.1", 443));
    assert_false(admits("*:*", "[2001:db8::1]", 443));
    assert_true(admits("192.0.2.1:443", "192.0.2.1", 443));
    assert_true(admits("192.0.2.1:443", "192.0.2.1.", 443));
    assert_true(admits("192.0.2.1:443", "[::ffff:192.0.2.1]", 443));
    assert_true(admits("[::ffff:192.0.2.1]:443", "192.0.2.1", 443));
    assert_false(admits("192.0.2.1:443", "192.0.2.2", 443));
    assert_true(admits("192.0.2.128/25:443", "192.0.2.200", 443));
    assert_false(admits("192.0.2.128/25:443", "192.0.2.127", 443));
    assert_true(admits("[2001:db8::/32]:*", "[2001:DB8:0:0::5]", 1));
    assert_false(admits("[2001:db8::/32]:*", "[2001:db9::5]", 1));
    assert_true(admits("[2001:db8::1]:443", "[2001:db8:0::1]", 443));
    /* What is special is admitted by nothing wider than what it is. */
    assert_false(admits("0.0.0.0/0:*", "127.0.0.1", 80));
    assert_false(admits("0.0.0.0/0:*", "169.254.169.254", 80));
    assert_false(admits("169.254.0.0/16:*", "169.254.169.254", 80));
    assert_true(admits("169.254.0.0/16:*", "169.254.1.1", 80));
    assert_true(admits("169.254.169.254:80", "169.254.169.254", 80));
    assert_true(admits("10.0.0.0/8:*", "10.1.2.3", 80));
    assert_false(admits("[::/0]:*", "[::1]", 80));
    assert_false(admits("[::/0]:*", "[64:ff9b::7f00:1]", 80));
    assert_true(admits("0.0.0.0/0:*", "192.0.2.1", 80));
}

/* The text, and the entry as it is shown and compared. */
static void normalised(void **state)
{
    static const char *const cases[][2] = {
        {"EXAMPLE.org.:443", "example.org:443"},
        {"*.B\xc3\x9c\x43HER.example:*", "*.xn--bcher-kva.example:*"},
        {"192.0.2.1:443", "192.0.2.1:443"},
        {"192.0.2.1/32:443", "192.0.2.1:443"},
        {"192.0.2.0/24:443", "192.0.2.0/24:443"},
        {"[2001:DB8:0::1]:443", "[2001:db8::1]:443"},
        {"[2001:db8::/32]:*", "[2001:db8::/32]:*"},
        {"[::ffff:10.0.0.1]:443", "10.0.0.1:443"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct allow_list *list = list_of((const char *const[]){cases[i][0], NULL});
        assert_string_equal(allow_list_text(list, 0), cases[i][1]);
        allow_list_free(list);
    }
}

static void mistakes(void **state)
{
    static const struct {
        const char *entry;
        size_t at;
        const char *why;
    } cases[] = {
        {"", 1, "a colon and a port are missing"},
        {"example.org", 12, "a colon and a port are missing"},
        {"example.org:", 13, "a port is"},
        {"example.org:0", 13, "a port is"},
        {"example.org:65536", 13, "a port is"},
        {"example.org:0443", 13, "a port is"},
        {"example.org:443 ", 13, "a port is"},
        {":443", 1, "a name is missing"},
        {".:443", 1, "a name is missing"},
        {"example..org:443", 9, "an empty label"},
        {".example.org:443", 1, "an empty label"},
        {"exa mple.org:443", 4, "a character that no name has"},
        {"a.ex%61mple.org:443", 5, "a character that no name has"},
        {"user@example.org:443", 5, "user names"},
        {"https://example.org:443", 6, "no scheme"},
        {"foo*.example.org:443", 4, "a * stands for a whole label"},
        {"a.*b.org:443", 3, "a * stands for a whole label"},
        {"2001:db8::1:443", 1, "IPv6 addresses stand in brackets"},
        {"[2001:db8::1:443", 17, "a ] is missing"},
        {"[2001:db8::1]443", 14, "a colon and a port"},
        {"[192.0.2.1]:443", 2, "no IPv6 address"},
        {"[fe80::1%eth0]:443", 2, "no IPv6 address"},
        {"127.1:443", 1, "four decimal numbers"},
        {"0x7f000001:443", 1, "four decimal numbers"},
        {"0177.0.0.1:443", 1, "four decimal numbers"},
        {"2130706433:443", 1, "four decimal numbers"},
        {"192.0.2.256:443", 1, "four decimal numbers"},
        {"192.0.2.1/24:443", 1, "the block does not start"},
        {"192.0.2.0/33:443", 11, "a number of bits, from 0 to 32"},
        {"[2001:db8::/129]:443", 13, "a number of bits, from 0 to 128"},
        {"192.0.2.0/:443", 11, "a number of bits"},
        {"[::ffff:10.0.0.0/104]:443", 2, "written as IPv4"},
        {"\xff\xfe.org:443", 1, "a label that no name can have"},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        char at[32];
        struct allow_list *list = list_of((const char *const[]){NULL});
        struct failure failure;
        assert_int_equal(allow_list_add(list, bytes_of_string(cases[i].entry), &failure), -EINVAL);
        (void)snprintf(at, sizeof at, "at character %zu: ", cases[i].at);
        if (!strstr(failure.text, at) || !strstr(failure.text, cases[i].why))
            fail_msg("%s", failure.text);
        assert_int_equal(allow_list_count(list), 0);
        allow_list_free(list);
    }
}

static void too_many(void **state)
{
    struct allow_list *list = list_of((const char *const[]){NULL});
    struct failure failure;
    for (size_t i = 0; i < ALLOW_ENTRIES_MAX; i++)
        assert_int_equal(allow_list_add(list, bytes_of_string("a:1"), &failure), 0);
    assert_int_equal(allow_list_add(list, bytes_of_string("a:1"), &failure), -E2BIG);
    allow_list_free(list);
}

static void long_names(void **state)
{
    char text[300];
    struct allow_host host;
    const char *why;
    memset(text, 'a', sizeof text);
    for (size_t i = 63; i < sizeof text; i += 64)
        text[i] = '.';
    assert_int_equal(allow_host_parse(bytes_of(text, 253), &host, &why), 0);
    assert_int_equal(allow_host_parse(bytes_of(text, 254), &host, &why), -EINVAL);
    text[63] = 'a';
    assert_int_equal(allow_host_parse(bytes_of(text, 100), &host, &why), -EINVAL);
}

static void hosts_that_are_refused(void **state)
{
    static const char *const cases[] = {
        "127.1",       "0x7f.1",        "0x7f000001", "017700000001", "2130706433", "0127.0.0.1",
        "127.0.0.1.1", "1.2.3.0x",      "::1",        "[::1",         "[::1]x",     "[::1%lo]",
        "[127.0.0.1]", "a@b",           "a b",        "a:b",          "",           ".",
        "a..b",        "*.example.org", "*",          "a/b",          "a\\b",       "a\tb",
        "a%2eb",       "a\nb",          "[]",
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct allow_host host;
        const char *why = NULL;
        if (allow_host_parse(bytes_of_string(cases[i]), &host, &why) != -EINVAL || !why)
            fail_msg("%s", cases[i]);
    }
    struct allow_host host;
    const char *why;
    assert_int_equal(allow_host_parse(bytes_of("a\0b", 3), &host, &why), -EINVAL);
    assert_int_equal(allow_host_parse(bytes_of("[::1\0]", 6), &host, &why), -EINVAL);
}

static void special_addresses(void **state)
{
    static const struct {
        const char *text;
        const char *what; /* NULL: public */
    } cases[] = {
        {"0.0.0.0", "unspecified"},
        {"10.0.0.1", "private"},
        {"100.63.255.255", NULL},
        {"100.64.0.0", "shared by a carrier (CGNAT)"},
        {"100.127.255.255", "shared by a carrier (CGNAT)"},
        {"100.100.100.200", "a cloud's metadata service"},
        {"127.0.0.1", "loopback"},
        {"127.255.255.255", "loopback"},
        {"128.0.0.1", NULL},
        {"169.254.0.1", "link-local"},
        {"169.254.169.254", "a cloud's metadata service"},
        {"172.15.0.1", NULL},
        {"172.16.0.1", "private"},
        {"172.31.255.255", "private"},
        {"172.32.0.0", NULL},
        {"192.168.1.1", "private"},
        {"198.18.0.1", "for benchmarks"},
        {"224.0.0.1", "multicast"},
        {"255.255.255.255", "reserved"},
        {"198.51.100.7", NULL},
        {"8.8.8.8", NULL},
        {"::", "unspecified"},
        {"::1", "loopback"},
        {"::2", "reserved"},
        {"::127.0.0.1", "reserved"},
        {"::ffff:127.0.0.1", "loopback"},
        {"::ffff:198.51.100.7", NULL},
        {"64:ff9b::127.0.0.1", "loopback"},
        {"64:ff9b::169.254.169.254", "a cloud's metadata service"},
        {"64:ff9b::198.51.100.7", NULL},
        {"64:ff9b:1::1", "reserved (NAT64)"},
        {"2001::1", "reserved"},
        {"2002:7f00:1::", "loopback"},
        {"2002:c633:6407::", NULL},
        {"fc00::1", "unique-local"},
        {"fdff::1", "unique-local"},
        {"fd00:ec2::254", "a cloud's metadata service"},
        {"fe80::1", "link-local"},
        {"fec0::1", "site-local"},
        {"ff02::1", "multicast"},
        {"4000::1", "reserved"},
        {"2606:4700::1", NULL},
        {"2001:db8::1", NULL},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct address a;
        struct address_block block;
        assert_int_equal(address_parse(cases[i].text, &a), 0);
        const char *what = address_special(&a, &block);
        if (what != cases[i].what && (!what || !cases[i].what || strcmp(what, cases[i].what) != 0))
            fail_msg("%s: %s", cases[i].text, what ? what : "public");
        if (what)
            assert_true(address_is_in(&a, &block));
    }
}

/* What a name may resolve to. */
static void resolved_addresses(void **state)
{
    struct allow_list *list =
        list_of((const char *const[]){"*:443", "10.1.0.0/16:443", "0.0.0.0/0:443", NULL});
    static const struct {
        const char *address;
        bool refused;
    } cases[] = {
        {"198.51.100.7", false}, {"10.1.2.3", false},        {"10.2.0.0", true},
        {"127.0.0.1", true},     {"169.254.169.254", true},  {"::1", true},
        {"2001:db8::1", false},  {"::ffff:10.1.2.3", false}, {"::ffff:10.2.2.3", true},
    };
    for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
        struct address a;
        assert_int_equal(address_parse(cases[i].address, &a), 0);
        assert_true(!!allow_list_refuses_address(list, &a, 443) == cases[i].refused);
    }
    struct address a;
    assert_int_equal(address_parse("10.1.2.3", &a), 0);
    assert_string_equal(allow_list_refuses_address(list, &a, 80), "private");
    allow_list_free(list);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(names),
        cmocka_unit_test(stars),
        cmocka_unit_test(other_scripts),
        cmocka_unit_test(addresses),
        cmocka_unit_test(normalised),
        cmocka_unit_test(mistakes),
        cmocka_unit_test(too_many),
        cmocka_unit_test(long_names),
        cmocka_unit_test(hosts_that_are_refused),
        cmocka_unit_test(special_addresses),
        cmocka_unit_test(resolved_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
