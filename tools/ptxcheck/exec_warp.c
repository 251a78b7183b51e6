// SPDX-License-Identifier: Apache-2.0
// Instructions of a group of threads: barriers (decoded here, executed by machine.c), shuffles,
// votes, reductions, matrix loads and products. A handler gets all lanes of a warp that take part;
// the machine has made sure that they stand at the same instruction.
//
// W1. Fragments lie as PTX describes them: lane l has g = l / 4, t = l % 4; the low bits of a
//     register hold the lower index.
// W2. s8/u8 products are exact modulo 2^32. f16/bf16 products are summed in f64 together with the
//     accumulator and rounded once to f32; a card may differ in the last bits, so results of such a
//     kernel are compared by bound.
#include "exec.h"

#include <string.h>

#define WARP_HANDLER(name) static void name(struct warp_call *call, const struct insn *i)

static u32 get32(struct thread *t, const struct operand *o) { return (u32)get(t, o); }

// --- shfl ---

enum shuffle { SHUFFLE_UP, SHUFFLE_DOWN, SHUFFLE_BFLY, SHUFFLE_IDX };

WARP_HANDLER(run_shfl) {
    u32 value[32] = {0}, from[32] = {0};
    bool inside[32] = {0};
    for (u32 l = 0; l < 32; l++) {
        struct thread *t = call->lane[l];
        if (t == NULL) continue;
        value[l] = get32(t, &i->src[0]);
        u32 b = get32(t, &i->src[1]) & 31, c = get32(t, &i->src[2]);
        u32 clamp = c & 31, segment = c >> 8 & 31;
        u32 top = (l & segment) | (clamp & ~segment), bottom = l & segment;
        switch ((enum shuffle)i->sub) {
        case SHUFFLE_UP:
            from[l] = l - b;
            inside[l] = (i32)from[l] >= (i32)top;
            break;
        case SHUFFLE_DOWN:
            from[l] = l + b;
            inside[l] = from[l] <= top;
            break;
        case SHUFFLE_BFLY:
            from[l] = l ^ b;
            inside[l] = from[l] <= top;
            break;
        case SHUFFLE_IDX:
            from[l] = bottom | (b & ~segment);
            inside[l] = from[l] <= top;
            break;
        }
        if (!inside[l]) from[l] = l;
    }
    for (u32 l = 0; l < 32; l++) {
        struct thread *t = call->lane[l];
        if (t == NULL) continue;
        if (call->lane[from[l]] == NULL) {
            REPORT(t, REPORT_UNINIT, "takes the value of lane %u, which does not take part",
                   from[l]);
        }
        put(t, &i->dst[0], value[from[l]]);
        if (i->n_dst > 1) put(t, &i->dst[1], inside[l]);
    }
}

static void take_mask(struct opcode *opcode, const struct argument *argument, struct insn *insn) {
    insn->class = CLASS_WARP;
    decode_operand(opcode, argument, TYPE_B32, false, &insn->mask);
}

static void decode_shfl(struct opcode *opcode, struct argument *arguments, u32 n,
                        struct insn *insn) {
    if (!opcode_take(opcode, "sync")) opcode_fail(opcode, ".sync is wanted");
    static const char *const words[] = {"up", "down", "bfly", "idx"};
    u32 mode = 0;
    while (mode < 4 && !opcode_take(opcode, words[mode])) mode++;
    if (mode == 4 || opcode_take_type(opcode) != TYPE_B32 || n != 5) {
        opcode_fail(opcode, "unknown form");
    }
    insn->sub = (u8)mode;
    insn->n_dst = 1;
    if (arguments[0].has_second) {
        insn->n_dst = 2;
        insn->dst[1] = arguments[0].second;
        arguments[0].has_second = false;
        if (insn->dst[1].kind == OPERAND_REG && insn->dst[1].type != TYPE_PRED) {
            opcode_fail(opcode, "no predicate behind \"|\"");
        }
    }
    insn->run_warp = run_shfl;
    decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
    for (u32 k = 0; k < 3; k++) {
        decode_operand(opcode, &arguments[1 + k], TYPE_B32, false, &insn->src[k]);
    }
    take_mask(opcode, &arguments[4], insn);
}

// --- vote, redux, activemask, bar.warp ---

enum vote { VOTE_ALL, VOTE_ANY, VOTE_UNI, VOTE_BALLOT };

WARP_HANDLER(run_vote) {
    u32 ballot = 0;
    for (u32 l = 0; l < 32; l++) {
        if (call->lane[l] != NULL && get(call->lane[l], &i->src[0])) ballot |= 1u << l;
    }
    u64 result = ballot;
    if (i->sub == VOTE_ALL) result = ballot == call->lanes;
    if (i->sub == VOTE_ANY) result = ballot != 0;
    if (i->sub == VOTE_UNI) result = ballot == call->lanes || ballot == 0;
    for (u32 l = 0; l < 32; l++) {
        if (call->lane[l] != NULL) put(call->lane[l], &i->dst[0], result);
    }
}

static void decode_vote(struct opcode *opcode, struct argument *arguments, u32 n,
                        struct insn *insn) {
    static const char *const words[] = {"all", "any", "uni", "ballot"};
    if (!opcode_take(opcode, "sync")) opcode_fail(opcode, ".sync is wanted");
    u32 mode = 0;
    while (mode < 4 && !opcode_take(opcode, words[mode])) mode++;
    enum ptx_type type = opcode_take_type(opcode);
    if (mode == 4 || n != 3 || type != (mode == VOTE_BALLOT ? TYPE_B32 : TYPE_PRED)) {
        opcode_fail(opcode, "unknown form");
    }
    insn->sub = (u8)mode;
    insn->n_dst = 1;
    insn->run_warp = run_vote;
    decode_operand(opcode, &arguments[0], type, false, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], TYPE_PRED, false, &insn->src[0]);
    take_mask(opcode, &arguments[2], insn);
}

enum redux { REDUX_ADD, REDUX_MIN, REDUX_MAX, REDUX_AND, REDUX_OR, REDUX_XOR };

WARP_HANDLER(run_redux) {
    u32 result = 0;
    bool first = true;
    for (u32 l = 0; l < 32; l++) {
        if (call->lane[l] == NULL) continue;
        u32 x = get32(call->lane[l], &i->src[0]);
        bool less = i->type == TYPE_S32 ? (i32)x < (i32)result : x < result;
        if (first) {
            result = x;
        } else if (i->sub == REDUX_ADD) {
            result += x;
        } else if (i->sub == REDUX_MIN) {
            result = less ? x : result;
        } else if (i->sub == REDUX_MAX) {
            result = less ? result : x;
        } else {
            result = i->sub == REDUX_AND  ? (result & x)
                     : i->sub == REDUX_OR ? (result | x)
                                          : (result ^ x);
        }
        first = false;
    }
    for (u32 l = 0; l < 32; l++) {
        if (call->lane[l] != NULL) put(call->lane[l], &i->dst[0], result);
    }
}

static void decode_redux(struct opcode *opcode, struct argument *arguments, u32 n,
                         struct insn *insn) {
    static const char *const words[] = {"add", "min", "max", "and", "or", "xor"};
    if (!opcode_take(opcode, "sync")) opcode_fail(opcode, ".sync is wanted");
    u32 mode = 0;
    while (mode < COUNT_OF(words) && !opcode_take(opcode, words[mode])) mode++;
    insn->type = (u8)opcode_take_type(opcode);
    bool arithmetic = insn->type == TYPE_U32 || insn->type == TYPE_S32;
    if (mode == COUNT_OF(words) || n != 3 ||
        (mode <= REDUX_MAX ? !arithmetic : insn->type != TYPE_B32)) {
        opcode_fail(opcode, "unknown form");
    }
    insn->sub = (u8)mode;
    insn->n_dst = 1;
    insn->run_warp = run_redux;
    decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], TYPE_B32, false, &insn->src[0]);
    take_mask(opcode, &arguments[2], insn);
}

WARP_HANDLER(run_bar_warp) {
    (void)i;
    race_join_warp(call->block, call->lane);
}

// Threads run alone between synchronisations, which PTX allows: the mask holds the thread itself.
static void run_activemask(struct thread *t, const struct insn *i) {
    put(t, &i->dst[0], 1u << t->lane);
}

static void decode_activemask(struct opcode *opcode, struct argument *arguments, u32 n,
                              struct insn *insn) {
    if (opcode_take_type(opcode) != TYPE_B32 || n != 1) opcode_fail(opcode, "unknown form");
    insn->run = run_activemask;
    decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
}

// --- barriers of the block ---

static void decode_bar(struct opcode *opcode, struct argument *arguments, u32 n,
                       struct insn *insn) {
    bool is_bar = strcmp(opcode->words[0], "bar") == 0;
    if (is_bar && opcode_take(opcode, "warp")) {
        if (!opcode_take(opcode, "sync") || n != 1) opcode_fail(opcode, "unknown form");
        insn->run_warp = run_bar_warp;
        take_mask(opcode, &arguments[0], insn);
        return;
    }
    opcode_take(opcode, "cta");
    insn->class = CLASS_BARRIER;
    insn->aligned = opcode_take(opcode, "aligned") || is_bar;
    bool sync = opcode_take(opcode, "sync"), arrive = opcode_take(opcode, "arrive");
    bool red = opcode_take(opcode, "red");
    if (sync + arrive + red != 1) opcode_fail(opcode, "unknown form");
    insn->sub = arrive ? BARRIER_ARRIVE : BARRIER_SYNC;
    u32 first = 0, last = n;
    if (red) {
        bool popc = opcode_take(opcode, "popc"), all = opcode_take(opcode, "and");
        if (!popc && !all && !opcode_take(opcode, "or")) opcode_fail(opcode, "unknown form");
        insn->sub = popc ? BARRIER_RED_POPC : all ? BARRIER_RED_AND : BARRIER_RED_OR;
        enum ptx_type type = opcode_take_type(opcode);
        if (type != (popc ? TYPE_U32 : TYPE_PRED) || n < 3) opcode_fail(opcode, "unknown form");
        insn->n_dst = 1;
        decode_operand(opcode, &arguments[0], type, false, &insn->dst[0]);
        decode_operand(opcode, &arguments[n - 1], TYPE_PRED, false, &insn->src[2]);
        first = 1;
        last = n - 1;
    }
    if (last - first < 1 || last - first > 2 || (arrive && last - first != 2)) {
        opcode_fail(opcode, "a wrong number of operands");
    }
    insn->n_src = (u8)(last - first);
    for (u32 k = first; k < last; k++) {
        decode_operand(opcode, &arguments[k], TYPE_U32, false, &insn->src[k - first]);
    }
}

// --- ldmatrix, movmatrix ---

static void distribute(struct warp_call *call, const struct operand *to, u16 const matrix[8][8],
                       bool transposed) {
    for (u32 l = 0; l < 32; l++) {
        struct thread *t = call->lane[l];
        if (t == NULL) continue;
        u32 g = l / 4, k = 2 * (l % 4);
        u32 low = transposed ? matrix[k][g] : matrix[g][k];
        u32 high = transposed ? matrix[k + 1][g] : matrix[g][k + 1];
        put(t, to, high << 16 | low);
    }
}

static u64 lane_address(struct thread *t, const struct insn *i) {
    if (i->address.kind == OPERAND_IMM) return (u64)i->address.imm;
    u64 sum = get(t, &i->address) + (u64)i->address.imm;
    return ptx_type_bytes(i->address.type) == 4 ? (u32)sum : sum;
}

WARP_HANDLER(run_ldmatrix) {
    for (u32 m = 0; m < i->lanes; m++) {
        u16 matrix[8][8] = {{0}};
        for (u32 row = 0; row < 8; row++) {
            struct thread *t = call->lane[8 * m + row];
            const u8 *data = memory_access(t, i->space, lane_address(t, i), 16, ACCESS_READ);
            if (data != NULL) memcpy(matrix[row], data, 16);
        }
        distribute(call, &i->dst[m], (const u16(*)[8])matrix, (i->flags & FLAG_TRANS) != 0);
    }
}

static void decode_ldmatrix(struct opcode *opcode, struct argument *arguments, u32 n,
                            struct insn *insn) {
    bool sync = opcode_take(opcode, "sync"), aligned = opcode_take(opcode, "aligned");
    bool shape = opcode_take(opcode, "m8n8");
    insn->lanes = opcode_take(opcode, "x1")   ? 1
                  : opcode_take(opcode, "x2") ? 2
                  : opcode_take(opcode, "x4") ? 4
                                              : 0;
    if (opcode_take(opcode, "trans")) insn->flags |= FLAG_TRANS;
    bool shared = opcode_take(opcode, "shared") || opcode_take(opcode, "shared::cta");
    insn->space = shared ? SPACE_SHARED : SPACE_GENERIC;
    if (!sync || !aligned || !shape || insn->lanes == 0 || opcode_take_type(opcode) != TYPE_B16 ||
        n != 2 || arguments[0].kind == ARGUMENT_ADDRESS || arguments[0].n != insn->lanes ||
        arguments[1].kind != ARGUMENT_ADDRESS) {
        opcode_fail(opcode, "unknown form");
    }
    insn->class = CLASS_WARP_ALL;
    insn->run_warp = run_ldmatrix;
    insn->n_dst = insn->lanes;
    insn->address = arguments[1].member[0];
    for (u32 k = 0; k < insn->lanes; k++) {
        struct argument one = {.n = 1, .member = {arguments[0].member[k]}};
        decode_operand(opcode, &one, TYPE_B32, false, &insn->dst[k]);
    }
}

WARP_HANDLER(run_movmatrix) {
    u16 matrix[8][8];
    for (u32 l = 0; l < 32; l++) {
        u32 value = get32(call->lane[l], &i->src[0]);
        matrix[l / 4][2 * (l % 4)] = (u16)value;
        matrix[l / 4][2 * (l % 4) + 1] = (u16)(value >> 16);
    }
    distribute(call, &i->dst[0], (const u16(*)[8])matrix, true);
}

static void decode_movmatrix(struct opcode *opcode, struct argument *arguments, u32 n,
                             struct insn *insn) {
    bool sync = opcode_take(opcode, "sync"), aligned = opcode_take(opcode, "aligned");
    bool shape = opcode_take(opcode, "m8n8"), trans = opcode_take(opcode, "trans");
    if (!sync || !aligned || !shape || !trans || opcode_take_type(opcode) != TYPE_B16 || n != 2) {
        opcode_fail(opcode, "unknown form");
    }
    insn->class = CLASS_WARP_ALL;
    insn->run_warp = run_movmatrix;
    insn->n_dst = 1;
    decode_operand(opcode, &arguments[0], TYPE_B32, false, &insn->dst[0]);
    decode_operand(opcode, &arguments[1], TYPE_B32, false, &insn->src[0]);
}

// --- mma ---

#define MMA_M 16
#define MMA_N 8
#define MMA_K_MAX 32

// The registers of the lanes, A then B then C.
struct mma_lane {
    u32 a[4], b[2], c[4];
};

static void mma_gather(struct warp_call *call, const struct insn *i, struct mma_lane lane[32]) {
    u32 n_a = i->lanes, n_b = n_a / 2;
    for (u32 l = 0; l < 32; l++) {
        for (u32 k = 0; k < n_a; k++) lane[l].a[k] = get32(call->lane[l], &i->src[k]);
        for (u32 k = 0; k < n_b; k++) lane[l].b[k] = get32(call->lane[l], &i->src[n_a + k]);
        for (u32 k = 0; k < 4; k++) lane[l].c[k] = get32(call->lane[l], &i->src[n_a + n_b + k]);
    }
}

// Integers: each register holds four consecutive k.
static i32 byte_value(u32 word, u32 k, bool is_signed) {
    u8 byte = (u8)(word >> 8 * (k % 4));
    return is_signed ? (i8)byte : byte;
}

WARP_HANDLER(run_mma_int) {
    struct mma_lane lane[32];
    i32 a[MMA_M][MMA_K_MAX], b[MMA_K_MAX][MMA_N];
    u32 depth = i->lanes == 4 ? 32 : 16;
    mma_gather(call, i, lane);
    for (u32 row = 0; row < MMA_M; row++) {
        for (u32 k = 0; k < depth; k++) {
            const struct mma_lane *at = &lane[row % 8 * 4 + k % 16 / 4];
            a[row][k] = byte_value(at->a[row / 8 + 2 * (k / 16)], k, i->type == TYPE_S8);
        }
    }
    for (u32 col = 0; col < MMA_N; col++) {
        for (u32 k = 0; k < depth; k++) {
            b[k][col] =
                byte_value(lane[col * 4 + k % 16 / 4].b[k / 16], k, i->type_from == TYPE_S8);
        }
    }
    for (u32 l = 0; l < 32; l++) {
        for (u32 r = 0; r < 4; r++) {
            u32 row = l / 4 + 8 * (r / 2), col = 2 * (l % 4) + r % 2, sum = lane[l].c[r];
            for (u32 k = 0; k < depth; k++) sum += (u32)(a[row][k] * b[k][col]);
            put(call->lane[l], &i->dst[r], sum);
        }
    }
}

static f64 half_value(u32 word, u32 k, bool is_bf16) {
    u16 half = (u16)(word >> 16 * (k % 2));
    return is_bf16 ? (f64)bf16_to_f32(half) : (f64)f16_to_f32(half);
}

WARP_HANDLER(run_mma_float) {
    struct mma_lane lane[32];
    f64 a[MMA_M][16], b[16][MMA_N];
    u32 depth = i->lanes == 4 ? 16 : 8;
    bool is_bf16 = i->type == TYPE_BF16;
    mma_gather(call, i, lane);
    for (u32 row = 0; row < MMA_M; row++) {
        for (u32 k = 0; k < depth; k++) {
            const struct mma_lane *at = &lane[row % 8 * 4 + k % 8 / 2];
            a[row][k] = half_value(at->a[row / 8 + 2 * (k / 8)], k, is_bf16);
        }
    }
    for (u32 col = 0; col < MMA_N; col++) {
        for (u32 k = 0; k < depth; k++) {
            b[k][col] = half_value(lane[col * 4 + k % 8 / 2].b[k / 8], k, is_bf16);
        }
    }
    for (u32 l = 0; l < 32; l++) {
        for (u32 r = 0; r < 4; r++) {
            u32 row = l / 4 + 8 * (r / 2), col = 2 * (l % 4) + r % 2;
            f64 sum = f32_from_bits(lane[l].c[r]);
            for (u32 k = 0; k < depth; k++) sum += a[row][k] * b[k][col];
            put(call->lane[l], &i->dst[r], canonical_f32((f32)sum));
        }
    }
}

static void take_fragment(struct opcode *opcode, const struct argument *argument, u32 n, u32 type,
                          struct operand *out) {
    bool single = n == 1 && argument->kind == ARGUMENT_OPERAND;
    if (!single && (argument->kind != ARGUMENT_VECTOR || argument->n != n)) {
        opcode_fail(opcode, "a fragment of %u registers is wanted", n);
    }
    for (u32 k = 0; k < n; k++) {
        struct argument one = {.n = 1, .member = {argument->member[k]}};
        decode_operand(opcode, &one, type, false, &out[k]);
    }
}

static void decode_mma(struct opcode *opcode, struct argument *arguments, u32 n,
                       struct insn *insn) {
    bool sync = opcode_take(opcode, "sync"), aligned = opcode_take(opcode, "aligned");
    bool k32 = opcode_take(opcode, "m16n8k32"), k16 = !k32 && opcode_take(opcode, "m16n8k16");
    bool k8 = !k32 && !k16 && opcode_take(opcode, "m16n8k8");
    bool row = opcode_take(opcode, "row"), col = opcode_take(opcode, "col");
    enum ptx_type type[4];
    for (u32 k = 0; k < 4; k++) type[k] = opcode_take_type(opcode);
    bool bytes = (type[1] == TYPE_S8 || type[1] == TYPE_U8) &&
                 (type[2] == TYPE_S8 || type[2] == TYPE_U8) && type[0] == TYPE_S32 &&
                 type[3] == TYPE_S32 && (k32 || k16);
    bool halves = (type[1] == TYPE_F16 || type[1] == TYPE_BF16) && type[2] == type[1] &&
                  type[0] == TYPE_F32 && type[3] == TYPE_F32 && (k16 || k8);
    if (!sync || !aligned || !row || !col || (!bytes && !halves) || n != 4) {
        opcode_fail(opcode, "not among those the checker executes");
    }
    u32 n_a = k32 || (k16 && halves) ? 4 : 2;
    u32 result = bytes ? TYPE_S32 : TYPE_F32;
    insn->class = CLASS_WARP_ALL;
    insn->run_warp = bytes ? run_mma_int : run_mma_float;
    insn->type = (u8)type[1];
    insn->type_from = (u8)type[2];
    insn->lanes = (u8)n_a;
    insn->n_dst = 4;
    insn->n_src = (u8)(n_a + n_a / 2 + 4);
    take_fragment(opcode, &arguments[0], 4, result, insn->dst);
    take_fragment(opcode, &arguments[1], n_a, TYPE_B32, insn->src);
    take_fragment(opcode, &arguments[2], n_a / 2, TYPE_B32, insn->src + n_a);
    take_fragment(opcode, &arguments[3], 4, result, insn->src + n_a + n_a / 2);
}

const struct family warp_families[] = {
    {"shfl", decode_shfl},
    {"vote", decode_vote},
    {"redux", decode_redux},
    {"bar", decode_bar},
    {"barrier", decode_bar},
    {"ldmatrix", decode_ldmatrix},
    {"movmatrix", decode_movmatrix},
    {"mma", decode_mma},
    {"activemask", decode_activemask},
    {NULL, NULL},
};
