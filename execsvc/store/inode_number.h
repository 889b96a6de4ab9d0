/* st_ino as clients see it. A file on its workspace's own filesystem with an inode number
 * below 2^40 has (slot << 40) | number, which needs no memory. All others (mounts inside a
 * workspace, filesystems with huge numbers) get the next number of a slot that no workspace
 * has, written down in ROOT/inodes, so that it stays the same after a restart. Two files
 * never have the same number. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define INODE_NUMBER_BITS 40

struct inode_numbers;

/* Numbers written down for one service: stops a huge filesystem inside a workspace from
 * filling memory and disk (32 bytes each in the file, about 100 in memory). */
#define INODE_NUMBERS_MAX ((size_t)1 << 20)

/* Reads root_fd/inodes, or starts with none. -ENOMEM, -EIO (damaged), others of open. */
int inode_numbers_open(int root_fd, struct inode_numbers **ret);
void inode_numbers_close(struct inode_numbers *numbers);

/* The number of file (device, ino) in the workspace of that slot, which lies on
 * own_device. -ENFILE: INODE_NUMBERS_MAX are taken. */
int inode_number(struct inode_numbers *numbers, uint32_t slot, dev_t own_device, dev_t device,
                 uint64_t ino, uint64_t *ret);
