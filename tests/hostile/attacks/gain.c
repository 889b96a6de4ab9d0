/* What a program has gained by being run: exits 0 when it is something, else as nothing came of it.
 */
#include <errno.h>
#include <linux/capability.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {0};
    if (argc > 1 && strcmp(argv[1], "user") == 0)
        return geteuid() != getuid() ? 0 : ENODATA;
    if (syscall(SYS_capget, &header, data) < 0)
        return errno;
    return data[0].effective & 1U << CAP_NET_RAW ? 0 : ENODATA;
}
