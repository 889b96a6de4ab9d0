/* Mounts in which every file is nobody's: who reads there is one of the others, root too, and sees
 * what everybody may. It holds for what comes later, and for files that take another's place. */
#pragma once

/* A descriptor of a user namespace to map mounts by, in which none of the machine's users is
 * anybody. -EPERM without privileges; other negative errnos. */
int idmap_new(int *ret);

/* Of a mount that is not attached yet, and all below it. -EINVAL: one of their file systems cannot
 * (overlayfs), and nothing has changed. Async-signal-safe. */
int idmap_apply(int idmap, int mount);
