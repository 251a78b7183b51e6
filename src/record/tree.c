// SPDX-License-Identifier: Apache-2.0
// Appending carries like an addition of 1 in binary; the root joins what is left from the smallest
// subtree to the largest. Both take at most 64 hashes.
#include "record/tree.h"

// SHA-256 of a byte and two digests, the RFC's inner node.
static struct sha256_digest join(const struct sha256_digest *left,
                                 const struct sha256_digest *right) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("\x01"));
    sha256_update(&h, (struct str){left->bytes, SHA256_BYTES});
    sha256_update(&h, (struct str){right->bytes, SHA256_BYTES});
    return sha256_end(&h);
}

struct sha256_digest tree_leaf_hash(struct str bytes) {
    struct sha256 h;
    sha256_begin(&h);
    sha256_update(&h, STR("\0"));
    sha256_update(&h, bytes);
    return sha256_end(&h);
}

void tree_append(struct tree *tree, const struct sha256_digest *leaf_hash) {
    struct sha256_digest carry = *leaf_hash;
    u32 level = 0;
    for (; (tree->n_leaves >> level & 1) != 0; level++) carry = join(&tree->full[level], &carry);
    assert(level < TREE_LEVELS);
    tree->full[level] = carry;
    tree->n_leaves++;
}

struct sha256_digest tree_root(const struct tree *tree) {
    if (tree->n_leaves == 0) return sha256_of(STR(""));
    u32 level = (u32)__builtin_ctzll(tree->n_leaves);
    struct sha256_digest root = tree->full[level];
    for (level++; level < TREE_LEVELS; level++) {
        if ((tree->n_leaves >> level & 1) != 0) root = join(&tree->full[level], &root);
    }
    return root;
}
