// SPDX-License-Identifier: Apache-2.0
// The Merkle tree of RFC 6962, section 2.1, over SHA-256, grown leaf by leaf: only the roots of the
// full subtrees are kept, one for each bit that is set in the number of leaves.
#pragma once
#include "record/sha256.h"

#define TREE_LEVELS 64

struct tree {
    u64 n_leaves;
    struct sha256_digest full[TREE_LEVELS]; // full[k]: of 2^k leaves, if bit k of n_leaves is set
};

// SHA-256 of a zero byte and the leaf's bytes.
struct sha256_digest tree_leaf_hash(struct str bytes);
void tree_append(struct tree *tree, const struct sha256_digest *leaf_hash);
// The root: the SHA-256 of nothing while there are no leaves.
struct sha256_digest tree_root(const struct tree *tree);
