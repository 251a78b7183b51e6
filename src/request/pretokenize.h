// SPDX-License-Identifier: Apache-2.0
// Cutting text into the pieces inside which byte-level BPE may merge. Private to src/request.
#pragma once
#include "freestanding/text.h"

enum pretokenizer {
    PRETOKENIZER_DEFAULT, // what a file without tokenizer.ggml.pre gets
    PRETOKENIZER_GPT2,
    PRETOKENIZER_SMOLLM,
    PRETOKENIZER_LLAMA3,
    PRETOKENIZER_QWEN2,
};

// By the name in tokenizer.ggml.pre; the empty name is "default". False for any other.
bool pretokenizer_by_name(struct str name, enum pretokenizer *kind);

// Where the pieces of a text are handed out from. The fields are private to pretokenize.c.
struct pretokenize {
    enum pretokenizer kind;
    struct str text;
    usize at;     // where the next piece starts
    usize end[3]; // where the fragments of the outer stages that hold `at` end
};

void pretokenize_start(struct pretokenize *cut, enum pretokenizer kind, struct str text);
// The next piece, never empty; false when there is none left. The pieces are the text, in order.
bool pretokenize_next(struct pretokenize *cut, struct str *piece);
