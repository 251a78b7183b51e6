// SPDX-License-Identifier: Apache-2.0
// Block formats of GGUF tensors. Each unpacker turns one block into plain integers and scales; all
// that is known about the position of a bit in a block is here, once. All numbers in a block are
// little-endian and scales named d, m and dmin are f16.
//
//   type  elements  bytes  layout, in this order
//   Q4_0        32     18  d, 16 bytes: element j low nibble of byte j, element j+16 high nibble
//   Q4_1        32     20  d, m, the same 16 bytes
//   Q5_0        32     22  d, u32 of fifth bits (bit j of element j), 16 bytes as Q4_0
//   Q5_1        32     24  d, m, u32 of fifth bits, 16 bytes
//   Q8_0        32     34  d, 32 signed bytes
//   Q2_K       256     84  16 bytes (scale low, min high nibble), 64 bytes of 2 bits, d, dmin
//   Q3_K       256    110  32 bytes of third bits, 64 bytes of 2 bits, 12 bytes of scales, d
//   Q4_K       256    144  d, dmin, 12 bytes of scales and mins, 128 bytes of nibbles
//   Q5_K       256    176  d, dmin, 12 bytes of scales and mins, 32 bytes of fifth bits, 128 bytes
//   Q6_K       256    210  128 bytes of low nibbles, 64 bytes of high 2 bits, 16 i8 scales, d
#include "ops/dtype.h"

const struct dtype_info dtype_table[DTYPE_LIMIT] = {
    [DTYPE_F32] = {"F32", 1, 4, false},      [DTYPE_F16] = {"F16", 1, 2, false},
    [DTYPE_BF16] = {"BF16", 1, 2, false},    [DTYPE_Q4_0] = {"Q4_0", 32, 18, true},
    [DTYPE_Q4_1] = {"Q4_1", 32, 20, true},   [DTYPE_Q5_0] = {"Q5_0", 32, 22, true},
    [DTYPE_Q5_1] = {"Q5_1", 32, 24, true},   [DTYPE_Q8_0] = {"Q8_0", 32, 34, true},
    [DTYPE_Q2_K] = {"Q2_K", 256, 84, true},  [DTYPE_Q3_K] = {"Q3_K", 256, 110, true},
    [DTYPE_Q4_K] = {"Q4_K", 256, 144, true}, [DTYPE_Q5_K] = {"Q5_K", 256, 176, true},
    [DTYPE_Q6_K] = {"Q6_K", 256, 210, true},
};

// Numbers that GGUF has given out, for messages about files that use what we lack.
static const char *const other_names[] = {
    [9] = "Q8_1",   [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
    [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",
    [24] = "I8",    [25] = "I16",    [26] = "I32",     [27] = "I64",    [28] = "F64",
    [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
};

const struct dtype_info *dtype_lookup(u32 number) {
    if (number >= DTYPE_LIMIT || dtype_table[number].name == NULL) return NULL;
    return &dtype_table[number];
}

const char *dtype_name(u32 number) {
    const struct dtype_info *info = dtype_lookup(number);
    if (info != NULL) return info->name;
    if (number < COUNT_OF(other_names) && other_names[number] != NULL) return other_names[number];
    return "unknown";
}

u64 dtype_row_bytes(enum dtype type, u64 n) {
    const struct dtype_info *info = dtype_lookup(type);
    assert(info != NULL);
    assert(n % info->block_elements == 0);
    return n / info->block_elements * info->block_bytes;
}

static i16 signed_byte(u8 byte) { return (i16)((byte ^ 0x80) - 0x80); }

// --- blocks of 32 ---

// 16 bytes: low nibbles are elements 0 to 15, high nibbles elements 16 to 31.
static void unpack_nibbles(const u8 bytes[16], i16 zero_point, i16 q[32]) {
    for (u32 j = 0; j < 16; j++) {
        q[j] = (i16)((bytes[j] & 15) - zero_point);
        q[j + 16] = (i16)((bytes[j] >> 4) - zero_point);
    }
}

// The fifth bit of element j is bit j of `bits`.
static void unpack_5_bits(u32 bits, const u8 bytes[16], i16 zero_point, i16 q[32]) {
    unpack_nibbles(bytes, zero_point, q);
    for (u32 j = 0; j < 32; j++) q[j] = (i16)(q[j] + (i16)((bits >> j & 1) << 4));
}

static void unpack_block_32(enum dtype type, const u8 *block, i16 q[32], f32 *d, f32 *m) {
    *d = f16_to_f32(load_u16(block));
    switch (type) {
    case DTYPE_Q4_0: unpack_nibbles(block + 2, 8, q); break;
    case DTYPE_Q4_1:
        *m = f16_to_f32(load_u16(block + 2));
        unpack_nibbles(block + 4, 0, q);
        break;
    case DTYPE_Q5_0: unpack_5_bits(load_u32(block + 2), block + 6, 16, q); break;
    case DTYPE_Q5_1:
        *m = f16_to_f32(load_u16(block + 2));
        unpack_5_bits(load_u32(block + 4), block + 8, 0, q);
        break;
    case DTYPE_Q8_0:
        for (u32 j = 0; j < 32; j++) q[j] = signed_byte(block[2 + j]);
        break;
    default: assert(!"a type with blocks of 32");
    }
}

// --- super blocks of 256 ---

// The 2-bit planes of Q2_K and Q3_K: 32 bytes hold 128 elements, element 32*i + l at bits 2i, 2i+1
// of byte l.
static void unpack_2_bits(const u8 bytes[64], i16 q[DTYPE_GROUP]) {
    for (u32 half = 0; half < 2; half++) {
        for (u32 i = 0; i < 4; i++) {
            for (u32 l = 0; l < 32; l++) {
                q[128 * half + 32 * i + l] = (i16)(bytes[32 * half + l] >> 2 * i & 3);
            }
        }
    }
}

static void unpack_q2_k(const u8 *block, struct dtype_group *group) {
    for (u32 j = 0; j < 16; j++) {
        group->scale[j] = block[j] & 15;
        group->min[j] = block[j] >> 4;
    }
    unpack_2_bits(block + 16, group->q);
    group->d[0] = f16_to_f32(load_u16(block + 80));
    group->m[0] = f16_to_f32(load_u16(block + 82));
}

static void unpack_q3_k(const u8 *block, struct dtype_group *group) {
    // Bit i of byte l of the first 32 bytes belongs to element 32*i + l; where it is 0, 4 is taken
    // off.
    unpack_2_bits(block + 32, group->q);
    for (u32 i = 0; i < 8; i++) {
        for (u32 l = 0; l < 32; l++) {
            i16 third_bit = (i16)((block[l] >> i & 1) << 2);
            group->q[32 * i + l] = (i16)(group->q[32 * i + l] + third_bit - 4);
        }
    }
    // 16 scales of 6 bits, offset 32: the low 4 bits are the nibbles of bytes 0 to 7 (low nibbles
    // first), the high 2 bits of scale j are bits 2*(j/4) of byte 8 + j%4.
    const u8 *scales = block + 96;
    for (u32 j = 0; j < 16; j++) {
        u32 low = scales[j % 8] >> 4 * (j / 8) & 15;
        u32 high = scales[8 + j % 4] >> 2 * (j / 4) & 3;
        group->scale[j] = (i16)((i32)(low | high << 4) - 32);
    }
    group->d[0] = f16_to_f32(load_u16(block + 108));
}

// The 12 bytes of Q4_K and Q5_K: 8 scales and 8 mins of 6 bits. Bytes 0 to 3 hold scales 0 to 3,
// bytes 4 to 7 mins 0 to 3, each in its low 6 bits; bytes 8 to 11 hold the low nibbles of scales
// 4 to 7 and, above them, of mins 4 to 7, whose high 2 bits are the top bits of bytes 0 to 7.
static void unpack_scales_and_mins(const u8 bytes[12], struct dtype_group *group) {
    for (u32 j = 0; j < 4; j++) {
        group->scale[j] = bytes[j] & 63;
        group->min[j] = bytes[j + 4] & 63;
        group->scale[j + 4] = (i16)((bytes[j + 8] & 15) | bytes[j] >> 6 << 4);
        group->min[j + 4] = (i16)(bytes[j + 8] >> 4 | bytes[j + 4] >> 6 << 4);
    }
}

// 128 bytes: 32 bytes hold 64 elements, low nibbles first.
static void unpack_nibbles_64(const u8 bytes[128], i16 q[DTYPE_GROUP]) {
    for (u32 i = 0; i < 4; i++) {
        for (u32 l = 0; l < 32; l++) {
            q[64 * i + l] = bytes[32 * i + l] & 15;
            q[64 * i + 32 + l] = bytes[32 * i + l] >> 4;
        }
    }
}

static void unpack_q4_k(const u8 *block, struct dtype_group *group) {
    group->d[0] = f16_to_f32(load_u16(block));
    group->m[0] = f16_to_f32(load_u16(block + 2));
    unpack_scales_and_mins(block + 4, group);
    unpack_nibbles_64(block + 16, group->q);
}

static void unpack_q5_k(const u8 *block, struct dtype_group *group) {
    group->d[0] = f16_to_f32(load_u16(block));
    group->m[0] = f16_to_f32(load_u16(block + 2));
    unpack_scales_and_mins(block + 4, group);
    unpack_nibbles_64(block + 48, group->q);
    for (u32 i = 0; i < 8; i++) { // bit i of byte l: the fifth bit of element 32*i + l
        for (u32 l = 0; l < 32; l++) {
            i16 fifth_bit = (i16)((block[16 + l] >> i & 1) << 4);
            group->q[32 * i + l] = (i16)(group->q[32 * i + l] + fifth_bit);
        }
    }
}

static void unpack_q6_k(const u8 *block, struct dtype_group *group) {
    // Each half of 128 elements has 64 bytes of low nibbles (elements 0 to 63 low, 64 to 127 high)
    // and 32 bytes of high bits (element 32*i + l at bits 2i, 2i+1 of byte l); offset 32.
    for (u32 half = 0; half < 2; half++) {
        const u8 *low = block + 64 * half, *high = block + 128 + 32 * half;
        for (u32 i = 0; i < 4; i++) {
            for (u32 l = 0; l < 32; l++) {
                i32 nibble = low[32 * (i % 2) + l] >> 4 * (i / 2) & 15;
                i32 top = (high[l] >> 2 * i & 3) << 4;
                group->q[128 * half + 32 * i + l] = (i16)((nibble | top) - 32);
            }
        }
    }
    for (u32 j = 0; j < 16; j++) group->scale[j] = signed_byte(block[192 + j]);
    group->d[0] = f16_to_f32(load_u16(block + 208));
}

void dtype_unpack_group(enum dtype type, const u8 *blocks, u32 n, struct dtype_group *group) {
    const struct dtype_info *info = dtype_lookup(type);
    assert(info != NULL && info->quantised);
    assert(n <= DTYPE_GROUP && n % info->block_elements == 0);
    if (n == 0) return;
    switch (type) {
    case DTYPE_Q2_K: unpack_q2_k(blocks, group); break;
    case DTYPE_Q3_K: unpack_q3_k(blocks, group); break;
    case DTYPE_Q4_K: unpack_q4_k(blocks, group); break;
    case DTYPE_Q5_K: unpack_q5_k(blocks, group); break;
    case DTYPE_Q6_K: unpack_q6_k(blocks, group); break;
    default:
        for (u32 b = 0; b < n / 32; b++) {
            unpack_block_32(type, blocks + (usize)b * info->block_bytes, group->q + 32 * b,
                            &group->d[b], &group->m[b]);
        }
    }
}

// --- values ---

// The value of each unpacked element; every product and sum rounds by itself.
static void group_values(enum dtype type, const struct dtype_group *group, u32 n, f32 *out) {
    switch (type) {
    case DTYPE_Q4_0:
    case DTYPE_Q5_0:
    case DTYPE_Q8_0:
        for (u32 e = 0; e < n; e++) out[e] = (f32)group->q[e] * group->d[e / 32];
        break;
    case DTYPE_Q4_1:
    case DTYPE_Q5_1:
        for (u32 e = 0; e < n; e++) out[e] = (f32)group->q[e] * group->d[e / 32] + group->m[e / 32];
        break;
    case DTYPE_Q3_K:
    case DTYPE_Q6_K:
        for (u32 e = 0; e < n; e++) {
            u32 block = e / 16;
            f32 scale = group->d[0] * (f32)group->scale[block];
            out[e] = scale * (f32)group->q[e];
        }
        break;
    default: { // Q2_K by 16, Q4_K and Q5_K by 32
        u32 width = type == DTYPE_Q2_K ? 16 : 32;
        for (u32 e = 0; e < n; e++) {
            u32 block = e / width;
            f32 scale = group->d[0] * (f32)group->scale[block];
            f32 min = group->m[0] * (f32)group->min[block];
            out[e] = scale * (f32)group->q[e] - min;
        }
    }
    }
}

void dtype_dequantise(enum dtype type, const u8 *row, u64 n, f32 *out) {
    const struct dtype_info *info = dtype_lookup(type);
    assert(info != NULL && n % info->block_elements == 0);
    switch (type) {
    case DTYPE_F32:
        for (u64 i = 0; i < n; i++) out[i] = load_f32(row + 4 * i);
        return;
    case DTYPE_F16:
        for (u64 i = 0; i < n; i++) out[i] = f16_to_f32(load_u16(row + 2 * i));
        return;
    case DTYPE_BF16:
        for (u64 i = 0; i < n; i++) out[i] = bf16_to_f32(load_u16(row + 2 * i));
        return;
    default: break;
    }
    struct dtype_group group = {0};
    for (u64 at = 0; at < n; at += DTYPE_GROUP) {
        u32 length = (u32)MIN(n - at, (u64)DTYPE_GROUP);
        const u8 *blocks = row + at / info->block_elements * info->block_bytes;
        dtype_unpack_group(type, blocks, length, &group);
        group_values(type, &group, length, out + at);
    }
}
