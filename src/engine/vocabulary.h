// SPDX-License-Identifier: Apache-2.0
// The tokenizer of a model file: reads the tokenizer.* keys of its directory and builds the
// tokenizer in memory of its own.
#pragma once
#include "model/weights.h"
#include "request/tokenizer.h"

struct vocabulary {
    const struct tokenizer *tokenizer;
    struct str chat_template; // tokenizer.chat_template; empty when absent
    void *memory;
    u64 memory_bytes;
};

enum sov_status vocabulary_open(struct vocabulary *vocabulary, const struct gguf *gguf,
                                struct sov_fault *fault) MUST_CHECK;
void vocabulary_close(struct vocabulary *vocabulary);

// Encodes into a list in memory mapped for the purpose, given back by token_list_free.
// `flags` as for tokenizer_encode.
struct token_list {
    u32 *ids;
    usize n;
    u64 memory_bytes;
};
enum sov_status vocabulary_encode(const struct vocabulary *vocabulary, struct str text, u32 flags,
                                  struct token_list *list, struct sov_fault *fault) MUST_CHECK;
void token_list_free(struct token_list *list);
