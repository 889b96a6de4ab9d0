/* Answers with directories and entries for what the driver reads ahead, and the service's count of
 * the references in them. */
#pragma once

#include "unit.h"

#include "inode.h"

/* The service's count of references, by node. */
#define NODES 4096
struct world {
    struct inode_table t;
    struct buffer directories;
    uint32_t directory_count;
    struct buffer entries;
    uint32_t entry_count;
    uint64_t cookie; /* where the next answer goes on */
    uint64_t refs[NODES];
};

struct wire_attr attr(uint64_t ino, uint32_t type);
int setup(void **state);
/* Takes the references that were given back from the service's count. */
void take_back(struct world *w);
/* All that is to go has gone. */
void settle(struct world *w);
int teardown(void **state);
void append(struct buffer *list, const struct wire_message *m);
/* File number n is node n; its name is "f" and the number, unless another is given. */
void add_entry_of(struct world *w, uint64_t node, const char *name, struct wire_attr a);
void add_entry(struct world *w, uint64_t node, const char *name, uint32_t type);
void end_directory_of(struct world *w, uint64_t node, bool end, uint32_t unlisted, uint32_t flags);
void end_directory(struct world *w, uint64_t node);
void take_only(struct world *w, uint64_t stamp, bool keep);
void take(struct world *w, uint64_t stamp, bool keep);
void take_now(struct world *w);
/* The root with files 10 to 19 and directory 20, which has files 21 to 29. */
void take_sample(struct world *w);
struct tree_directory *root_listing(struct world *w);
struct wire_dirent named(struct world *w, const char *name);
struct inode *lend(struct world *w, const char *name);
