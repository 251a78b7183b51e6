// SPDX-License-Identifier: Apache-2.0
// From the arrays of a model file to a struct tokenizer: every check of the vocabulary, and the
// tables that encoding looks things up in (tokenizer_private.h has their invariants).
//
// Memory for a vocabulary of n tokens and m merges, in bytes: 4n offsets, n attributes, 8n to 16n
// token slots, 12m merges, 8m to 16m merge slots, 4 for each special token. Strings and scores stay
// in the file.
#include "request/tokenizer_private.h"

// Token slots are at most half full, so a run of this many full ones does not come about by chance:
// a file that makes one was built to defeat the hash.
#define PROBES_MAX 4096

// Tokens known by their text. Files mark some of them wrongly as normal or user-defined; whatever
// the file says, they are treated as control tokens, so that text of a user cannot inject them
// (T1). llama.cpp has the same list and rule. `end`: the token ends an answer, as EOS and EOT do.
// The padding, repository and file separators of fill-in-the-middle end answers too: a model that
// emits one has finished its file.
static const struct {
    const char *text;
    bool end;
} known_tokens[] = {
    {"<|eot_id|>", true},
    {"<|eom_id|>", true},
    {"<|im_end|>", true},
    {"<|end|>", true},
    {"<|return|>", true},
    {"<|call|>", true},
    {"<|flush|>", true},
    {"<|calls|>", true},
    {"<end_of_turn>", true},
    {"<|endoftext|>", true},
    {"<|end_of_text|>", true},
    {"</s>", true},
    {"<eos>", true},
    {"<EOT>", true},
    {"_<EOT>", true},
    {"[EOT]", true},
    {"[EOS]", true},
    {"<end_of_utterance>", true},
    {"<turn|>", true},
    {"<|tool_response>", true},
    {"<｜end▁of▁sentence｜>", true},
    {"[e~[", true},
    {"<|fim_pad|>", true},
    {"<fim-pad>", true},
    {"<fim_pad>", true},
    {"<PAD>", true},
    {"[PAD]", true},
    {"<|fim_repo|>", true},
    {"<|repo_name|>", true},
    {"<fim-repo>", true},
    {"<REPO>", true},
    {"<reponame>", true},
    {"<|file_sep|>", true},
    {"<|fim_prefix|>", false},
    {"<fim-prefix>", false},
    {"<fim_prefix>", false},
    {"<｜fim▁begin｜>", false},
    {"<PRE>", false},
    {"▁<PRE>", false},
    {"<|code_prefix|>", false},
    {"<|fim_suffix|>", false},
    {"<fim-suffix>", false},
    {"<fim_suffix>", false},
    {"<｜fim▁hole｜>", false},
    {"<SUF>", false},
    {"▁<SUF>", false},
    {"<|code_suffix|>", false},
    {"<|fim_middle|>", false},
    {"<fim-middle>", false},
    {"<fim_middle>", false},
    {"<｜fim▁end｜>", false},
    {"<MID>", false},
    {"▁<MID>", false},
    {"<|code_middle|>", false},
    // Heads of turns in chat templates; llama.cpp leaves these to the file.
    {"<|im_start|>", false},
    {"<|im_sep|>", false},
    {"<start_of_turn>", false},
    {"<|start_header_id|>", false},
    {"<|end_header_id|>", false},
    {"<|system|>", false},
    {"<|user|>", false},
    {"<|assistant|>", false},
    {"[INST]", false},
    {"[/INST]", false},
    {"[SYSTEM_PROMPT]", false},
    {"[/SYSTEM_PROMPT]", false},
};

static u64 slots_for(u64 n) {
    u64 slots = 16;
    while (slots < 2 * n) slots *= 2;
    return slots;
}

static bool type_is_special(i32 type) {
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER_DEFINED;
}

static u64 count_specials(const struct tokenizer_source *source) {
    u64 n = COUNT_OF(known_tokens); // normal ones may become control tokens
    for (u64 id = 0; source->types != NULL && id < source->n_tokens; id++)
        n += type_is_special(load_i32(source->types + 4 * id)) ? 1 : 0;
    return n;
}

u64 tokenizer_memory_bytes(const struct tokenizer_source *source) {
    u64 n = source->n_tokens, n_merges = source->n_merges;
    u64 n_tables = 7, align_slack = 16; // each table may be moved up to its alignment
    return sizeof(struct tokenizer) + 5 * n + 4 * slots_for(n) +
           sizeof(struct bpe_merge) * (n_merges + 1) + 4 * slots_for(n_merges) +
           4 * count_specials(source) + n_tables * align_slack;
}

// The next string of a GGUF array of strings; `at` moves behind it.
static struct str next_string(const u8 **at) {
    struct str s = {*at + 8, load_u64(*at)};
    *at = s.data + s.len;
    return s;
}

static enum sov_status check_source(struct tokenizer *t, const struct tokenizer_source *source,
                                    struct sov_fault *fault) {
    t->is_spm = str_equal(source->model, STR("llama"));
    if (!t->is_spm && !str_equal(source->model, STR("gpt2")))
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "tokenizer.ggml.model is \"%.*s\"; known are \"gpt2\" and \"llama\"",
                         STR_ARG(source->model));
    if (!t->is_spm && !pretokenizer_by_name(source->pre, &t->pretokenizer))
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "tokenizer.ggml.pre is \"%.*s\"; known are gpt-2, smollm, llama-bpe, "
                         "qwen2 and default",
                         STR_ARG(source->pre));
    if (source->n_tokens == 0 || source->tokens == NULL)
        return fault_set(fault, SOV_ERR_FORMAT, "the vocabulary has no tokens");
    if (source->n_tokens > TOKENIZER_VOCAB_MAX)
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the vocabulary has %u tokens; at most %u are taken", source->n_tokens,
                         TOKENIZER_VOCAB_MAX);
    if (!t->is_spm && source->merges == NULL)
        return fault_set(fault, SOV_ERR_FORMAT,
                         "tokenizer.ggml.merges is missing, and the model is \"gpt2\"");
    if (source->n_merges > TOKENIZER_MERGES_MAX)
        return fault_set(fault, SOV_ERR_UNSUPPORTED,
                         "the vocabulary has %u merges; at most %u are taken", source->n_merges,
                         TOKENIZER_MERGES_MAX);
    t->n_tokens = source->n_tokens;
    t->n_merges = t->is_spm ? 0 : source->n_merges;
    t->strings = source->tokens;
    t->scores = source->scores;
    t->whole_words = !t->is_spm && t->pretokenizer == PRETOKENIZER_LLAMA3;
    return SOV_OK;
}

static enum sov_status allocate_tables(struct tokenizer *t, const struct tokenizer_source *source,
                                       struct arena *arena, struct sov_fault *fault) {
    u64 n_token_slots = slots_for(t->n_tokens), n_merge_slots = slots_for(t->n_merges);
    t->offsets = arena_array(arena, u32, t->n_tokens);
    t->attributes = arena_array(arena, u8, t->n_tokens);
    t->token_slots = arena_array(arena, u32, n_token_slots);
    t->merges = arena_array(arena, struct bpe_merge, MAX(t->n_merges, 1u));
    t->merge_slots = arena_array(arena, u32, n_merge_slots);
    t->specials = arena_array(arena, u32, count_specials(source));
    if (t->offsets == NULL || t->attributes == NULL || t->token_slots == NULL ||
        t->merges == NULL || t->merge_slots == NULL || t->specials == NULL)
        return arena_fault(arena, fault, "the tokenizer's tables", tokenizer_memory_bytes(source));
    memset(t->token_slots, 0xff, 4 * n_token_slots);
    memset(t->merge_slots, 0xff, 4 * n_merge_slots);
    t->token_slot_mask = (u32)(n_token_slots - 1);
    t->merge_slot_mask = (u32)(n_merge_slots - 1);
    return SOV_OK;
}

// Puts a token into the hash table; refuses a text that is there already.
static enum sov_status insert_token(struct tokenizer *t, u32 id, struct sov_fault *fault) {
    struct str text = token_text(t, id);
    u64 hash = hash_mix(hash_bytes(HASH_START, text));
    u32 tag = slot_tag(hash, TOKEN_SLOT_BITS);
    for (u32 probe = 0; probe < PROBES_MAX; probe++) {
        u32 *slot = &t->token_slots[((u32)hash + probe) & t->token_slot_mask];
        if (*slot == SLOT_EMPTY) {
            *slot = tag | id;
            return SOV_OK;
        }
        if ((*slot & ~0u << TOKEN_SLOT_BITS) != tag) continue;
        u32 other = *slot & ~(~0u << TOKEN_SLOT_BITS);
        if (str_equal(token_text(t, other), text))
            return fault_set(fault, SOV_ERR_FORMAT, "tokens %u and %u have the same text \"%.*s\"",
                             other, id, STR_ARG(text));
    }
    return fault_set(fault, SOV_ERR_UNSUPPORTED,
                     "the texts of too many tokens have one hash (token %u)", id);
}

static enum sov_status read_tokens(struct tokenizer *t, const struct tokenizer_source *source,
                                   struct sov_fault *fault) {
    const u8 *at = source->tokens;
    for (u32 id = 0; id < t->n_tokens; id++) {
        u64 offset = (u64)(at - source->tokens);
        struct str text = next_string(&at);
        if (offset > 0xffffffff || text.len > 0xffffffff)
            return fault_set(fault, SOV_ERR_UNSUPPORTED, "the token texts take more than 4 GiB");
        t->offsets[id] = (u32)offset;
        i32 type = source->types == NULL ? TOKEN_NORMAL : load_i32(source->types + 4 * (u64)id);
        if (type < TOKEN_NORMAL || type > TOKEN_BYTE)
            return fault_set(fault, SOV_ERR_FORMAT, "token %u has type %d; types are 1 to 6", id,
                             type);
        if (type == TOKEN_BYTE && byte_of_name(text) < 0)
            return fault_set(fault, SOV_ERR_FORMAT,
                             "byte token %u is \"%.*s\", not of the form <0xHH>", id,
                             STR_ARG(text));
        t->attributes[id] = (u8)type;
        if (t->is_spm && t->scores != NULL) {
            f32 score = load_f32(t->scores + 4 * (u64)id);
            if (score != score)
                return fault_set(fault, SOV_ERR_FORMAT, "the score of token %u is not a number",
                                 id);
        }
        t->piece_bytes_max = MAX(t->piece_bytes_max, (u32)text.len);
        if (text.len == 0) continue;
        enum sov_status status = insert_token(t, id, fault);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

static void set_type(struct tokenizer *t, u32 id, enum token_type type) {
    t->attributes[id] = (u8)((t->attributes[id] & ~ATTRIBUTE_TYPE) | type);
}

static void mark_known_tokens(struct tokenizer *t) {
    for (usize i = 0; i < COUNT_OF(known_tokens); i++) {
        u32 id = find_token(t, str_from_z(known_tokens[i].text));
        if (id == TOKEN_NONE) continue;
        set_type(t, id, TOKEN_CONTROL);
        if (known_tokens[i].end) t->attributes[id] |= ATTRIBUTE_END;
    }
}

// SPM: tokens of the type BYTE, and where a byte has none, a normal token with the text <0xHH>
// (files without types have only such): without them the byte would have no token at all.
static void find_byte_tokens_spm(struct tokenizer *t) {
    for (u32 wanted = 0; wanted < 2; wanted++) {
        enum token_type type = wanted == 0 ? TOKEN_BYTE : TOKEN_NORMAL;
        for (u32 id = 0; id < t->n_tokens; id++) {
            if (token_type_of(t, id) != type) continue;
            i32 byte = byte_of_name(token_text(t, id));
            if (byte < 0 || t->byte_token[byte] != TOKEN_NONE) continue;
            t->byte_token[byte] = id;
            set_type(t, id, TOKEN_BYTE);
        }
    }
}

static void find_byte_tokens_bpe(struct tokenizer *t) {
    for (u32 byte = 0; byte < 256; byte++) {
        u8 letter[4];
        u32 bytes = utf8_encode(byte_letter((u8)byte), letter);
        u32 id = find_token(t, (struct str){letter, bytes});
        if (id != TOKEN_NONE && token_is_text(t, id)) t->byte_token[byte] = id;
    }
}

// Which characters stand in front of U+2581 inside tokens (tokenizer_private.h).
static void find_inner_spaces(struct tokenizer *t) {
    for (u32 id = 0; id < t->n_tokens; id++) {
        struct str text = token_text(t, id);
        bool space_before = true; // nothing stands in front of the first character
        for (usize at = 0; at + SPM_SPACE_BYTES <= text.len;) {
            bool space = text.data[at] == (u8)SPM_SPACE[0] &&
                         memcmp(text.data + at, SPM_SPACE, SPM_SPACE_BYTES) == 0;
            if (space && !space_before) {
                u8 last = text.data[at - 1];
                t->before_space[last / 32] |= 1u << last % 32;
            }
            space_before = space;
            at += space ? SPM_SPACE_BYTES : 1;
        }
    }
}

static enum sov_status insert_merge(struct tokenizer *t, u32 rank, struct sov_fault *fault) {
    struct bpe_merge merge = t->merges[rank];
    u64 hash = hash_pair(merge.left, merge.right);
    u32 tag = slot_tag(hash, MERGE_SLOT_BITS);
    for (u32 probe = 0; probe < PROBES_MAX; probe++) {
        u32 *slot = &t->merge_slots[((u32)hash + probe) & t->merge_slot_mask];
        if (*slot == SLOT_EMPTY) {
            *slot = tag | rank;
            return SOV_OK;
        }
        if ((*slot & ~0u << MERGE_SLOT_BITS) != tag) continue;
        const struct bpe_merge *other = &t->merges[*slot & ~(~0u << MERGE_SLOT_BITS)];
        // The same pair again: the first one, of the better rank, holds.
        if (other->left == merge.left && other->right == merge.right) return SOV_OK;
    }
    return fault_set(fault, SOV_ERR_UNSUPPORTED, "too many merges have one hash (merge %u)", rank);
}

static enum sov_status read_merges(struct tokenizer *t, const struct tokenizer_source *source,
                                   struct sov_fault *fault) {
    const u8 *at = source->merges;
    for (u32 rank = 0; rank < t->n_merges; rank++) {
        struct str text = next_string(&at);
        usize space = 1; // a merge of a space would start with one
        while (space < text.len && text.data[space] != ' ') space++;
        if (space + 1 >= text.len)
            return fault_set(fault, SOV_ERR_FORMAT, "merge %u is \"%.*s\", not two tokens", rank,
                             STR_ARG(text));
        struct str left = {text.data, space};
        struct str right = {text.data + space + 1, text.len - space - 1};
        struct bpe_merge *merge = &t->merges[rank];
        *merge = (struct bpe_merge){find_token(t, left), find_token(t, right),
                                    find_joined(t, left, right)};
        if (merge->left == TOKEN_NONE || merge->right == TOKEN_NONE || merge->result == TOKEN_NONE)
            return fault_set(fault, SOV_ERR_FORMAT,
                             "merge %u is \"%.*s\": its %s is no token of the vocabulary", rank,
                             STR_ARG(text),
                             merge->left == TOKEN_NONE    ? "left part"
                             : merge->right == TOKEN_NONE ? "right part"
                                                          : "result");
        if (!token_is_text(t, merge->result)) continue; // V4
        enum sov_status status = insert_merge(t, rank, fault);
        if (status != SOV_OK) return status;
    }
    return SOV_OK;
}

// Moves specials[at] down to its place in the heap specials[0, n), the last text first.
static void sift_special(struct tokenizer *t, u32 at, u32 n) {
    u32 id = t->specials[at];
    struct str text = token_text(t, id);
    for (u32 child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && str_compare(token_text(t, t->specials[child]),
                                         token_text(t, t->specials[child + 1])) < 0)
            child++;
        if (str_compare(token_text(t, t->specials[child]), text) <= 0) break;
        t->specials[at] = t->specials[child];
        at = child;
    }
    t->specials[at] = id;
}

// The tokens that are recognised whole, sorted by text, and where each first byte starts among
// them. (A heap sort: no recursion, no memory, and never quadratic, whatever the file.)
static void collect_specials(struct tokenizer *t) {
    u32 n = 0;
    for (u32 id = 0; id < t->n_tokens; id++)
        if (type_is_special((i32)token_type_of(t, id)) && token_text(t, id).len > 0)
            t->specials[n++] = id;
    t->n_specials = n;
    for (u32 i = n / 2; i-- > 0;) sift_special(t, i, n);
    for (u32 left = n; left > 1; left--) {
        u32 last = t->specials[0];
        t->specials[0] = t->specials[left - 1];
        t->specials[left - 1] = last;
        sift_special(t, 0, left - 1);
    }
    u32 at = 0;
    for (u32 byte = 0; byte <= 256; byte++) {
        while (at < n && token_text(t, t->specials[at]).data[0] < byte) at++;
        t->special_first[byte] = at;
    }
}

// An id of the file, checked; *id is TOKEN_NONE when the file gives none.
static enum sov_status take_id(const struct tokenizer *t, u64 given, const char *name, u32 *id,
                               struct sov_fault *fault) {
    *id = TOKEN_NONE;
    if (given == TOKEN_ABSENT) return SOV_OK;
    if (given >= t->n_tokens)
        return fault_set(fault, SOV_ERR_FORMAT,
                         "tokenizer.ggml.%s_token_id is %llu, but the vocabulary has %u tokens",
                         name, given, t->n_tokens);
    *id = (u32)given;
    return SOV_OK;
}

// The token that stands in for bytes without one (T5).
static u32 choose_replacement(const struct tokenizer *t, u32 unknown) {
    if (unknown != TOKEN_NONE &&
        ((t->attributes[unknown] & ATTRIBUTE_END) != 0 || unknown == t->bos))
        unknown = TOKEN_NONE;
    if (t->is_spm && unknown != TOKEN_NONE) return unknown;
    struct str name = STR("\xef\xbf\xbd");
    u8 letters[3 * BYTE_LETTERS_BYTES_MAX];
    if (!t->is_spm) { // the same three bytes, each as its letter
        usize len = 0;
        for (usize i = 0; i < name.len; i++) {
            u8 letter[4];
            u32 bytes = utf8_encode(byte_letter(name.data[i]), letter);
            assert(bytes <= BYTE_LETTERS_BYTES_MAX);
            memcpy(letters + len, letter, bytes);
            len += bytes;
        }
        name = (struct str){letters, len};
    }
    u32 id = find_token(t, name);
    return id != TOKEN_NONE && token_is_text(t, id) ? id : unknown;
}

static enum sov_status take_ids(struct tokenizer *t, const struct tokenizer_source *source,
                                struct sov_fault *fault) {
    u32 eot, unknown;
    enum sov_status status = take_id(t, source->bos, "bos", &t->bos, fault);
    if (status == SOV_OK) status = take_id(t, source->eos, "eos", &t->eos, fault);
    if (status == SOV_OK) status = take_id(t, source->eot, "eot", &eot, fault);
    if (status == SOV_OK) status = take_id(t, source->unknown, "unknown", &unknown, fault);
    if (status != SOV_OK) return status;
    if (t->eos != TOKEN_NONE) t->attributes[t->eos] |= ATTRIBUTE_END;
    if (eot != TOKEN_NONE) t->attributes[eot] |= ATTRIBUTE_END;

    bool bos_by_default = t->is_spm || t->pretokenizer == PRETOKENIZER_LLAMA3;
    t->add_bos = source->has_add_bos ? source->add_bos : bos_by_default && t->bos != TOKEN_NONE;
    t->add_eos = source->has_add_eos && source->add_eos;
    if ((t->add_bos && t->bos == TOKEN_NONE) || (t->add_eos && t->eos == TOKEN_NONE)) {
        const char *name = t->add_bos && t->bos == TOKEN_NONE ? "bos" : "eos";
        return fault_set(fault, SOV_ERR_FORMAT,
                         "tokenizer.ggml.add_%s_token is true, but %s_token_id is missing", name,
                         name);
    }
    t->add_space_prefix = t->is_spm &&
                          (source->has_add_space_prefix ? source->add_space_prefix : true);
    t->replacement = choose_replacement(t, unknown);
    return SOV_OK;
}

static void measure_texts(struct tokenizer *t) {
    t->text_bytes_max = 1;
    for (u32 id = 0; id < t->n_tokens; id++)
        if (token_is_text(t, id))
            t->text_bytes_max = MAX(t->text_bytes_max, (u32)token_text(t, id).len);
    t->piece_bytes_max = MAX(t->piece_bytes_max, 1u);
}

enum sov_status tokenizer_create(const struct tokenizer_source *source, struct arena *arena,
                                 const struct tokenizer **tokenizer, struct sov_fault *fault) {
    *tokenizer = NULL;
    struct tokenizer *t = arena_array(arena, struct tokenizer, 1);
    if (t == NULL)
        return arena_fault(arena, fault, "the tokenizer", tokenizer_memory_bytes(source));
    *t = (struct tokenizer){0};
    memset(t->byte_token, 0xff, sizeof t->byte_token);
    enum sov_status status = check_source(t, source, fault);
    if (status == SOV_OK) status = allocate_tables(t, source, arena, fault);
    if (status == SOV_OK) status = read_tokens(t, source, fault);
    if (status != SOV_OK) return status;
    mark_known_tokens(t);
    if (t->is_spm) {
        find_byte_tokens_spm(t);
        find_inner_spaces(t);
    } else {
        find_byte_tokens_bpe(t);
        status = read_merges(t, source, fault);
        if (status != SOV_OK) return status;
    }
    measure_texts(t);
    collect_specials(t);
    status = take_ids(t, source, fault);
    if (status == SOV_OK) *tokenizer = t;
    return status;
}
