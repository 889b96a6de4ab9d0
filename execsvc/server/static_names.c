/* Part of the berthd that is linked statically. The machine's nsswitch.conf may name modules, which
 * would be loaded into this program from a C library of another version than is inside it. What
 * glibc has built in is used instead, whatever that file says. */
#include <nss.h>

static __attribute__((constructor)) void names_from_files_and_dns(void)
{
    (void)__nss_configure_lookup("passwd", "files");
    (void)__nss_configure_lookup("group", "files");
    (void)__nss_configure_lookup("services", "files");
    (void)__nss_configure_lookup("hosts", "files dns");
}
