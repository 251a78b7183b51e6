// SPDX-License-Identifier: Apache-2.0
// ops/dtype: the tables, f16 and bf16 conversions, and dequantised blocks bit for bit against
// golden files (GOLDEN=folder): per type some blocks as hex bytes and their values as hex f32 bits.
#include "freestanding/mem.h"
#include "ops/dtype.h"
#include "test.h"

#define SEED 20251131

static const enum dtype all_types[] = {
    DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q4_0, DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1,
    DTYPE_Q8_0, DTYPE_Q2_K, DTYPE_Q3_K, DTYPE_Q4_K, DTYPE_Q5_K, DTYPE_Q6_K,
};

static void table(void) {
    u32 n_known = 0;
    for (u32 i = 0; i < 1000; i++) n_known += dtype_lookup(i) != NULL;
    CHECK(n_known == COUNT_OF(all_types));
    for (u32 i = 0; i < COUNT_OF(all_types); i++) {
        const struct dtype_info *info = dtype_lookup(all_types[i]);
        CHECK(info != NULL);
        if (info == NULL) continue;
        CHECK(info->quantised == (info->block_elements > 1));
        CHECK(dtype_row_bytes(all_types[i], 0) == 0);
        CHECK(dtype_row_bytes(all_types[i], 3 * 256) ==
              3 * 256 / info->block_elements * (u64)info->block_bytes);
    }
    CHECK(dtype_row_bytes(DTYPE_Q4_K, 1ull << 40) == (1ull << 32) * 144); // no 32-bit product
    CHECK(dtype_lookup(0xffffffff) == NULL && dtype_lookup(DTYPE_LIMIT) == NULL);
    CHECK(str_equal(str_from_z(dtype_name(DTYPE_Q4_1)), STR("Q4_1")));
    CHECK(str_equal(str_from_z(dtype_name(23)), STR("IQ4_XS")));
    CHECK(str_equal(str_from_z(dtype_name(39)), STR("MXFP4")));
    CHECK(str_equal(str_from_z(dtype_name(4)), STR("unknown")));
    CHECK(str_equal(str_from_z(dtype_name(0xffffffff)), STR("unknown")));
}

// --- f16 and bf16 ---

static f64 f16_value(u32 half) { // by arithmetic; finite only
    f64 sign = half & 0x8000 ? -1.0 : 1.0;
    u32 exponent = half >> 10 & 31, mantissa = half & 1023;
    f64 value = exponent == 0 ? mantissa : mantissa + 1024;
    for (u32 e = MAX(exponent, 1); e < 25; e++) value *= 0.5;
    for (u32 e = 25; e < exponent; e++) value *= 2.0;
    return sign * value;
}

static void half_conversions(void) {
    for (u32 half = 0; half < 0x10000; half++) {
        f32 value = f16_to_f32((f16)half);
        u32 magnitude = half & 0x7fff;
        if (magnitude > 0x7c00) {
            CHECK(value != value && (f32_to_f16(value) & 0x7fff) > 0x7c00);
            continue;
        }
        CHECK_MSG(f32_to_f16(value) == half, "f16 0x%04x does not come back", half);
        if (magnitude == 0x7c00) continue;
        CHECK_MSG(value == f16_value(half), "f16 0x%04x = %.9g", half, (f64)value);
        if (magnitude == 0x7bff) continue;
        // The midpoint to the next magnitude goes to the even one; a hair off it to the nearer.
        f32 next = f16_to_f32((f16)(half + 1));
        f32 middle = (value + next) * 0.5f;
        u32 even = half & 1 ? half + 1 : half;
        CHECK_MSG(f32_to_f16(middle) == even, "midpoint above 0x%04x", half);
        CHECK(f32_to_f16(f32_from_bits(f32_bits(middle) - 1)) == half);
        CHECK(f32_to_f16(f32_from_bits(f32_bits(middle) + 1)) == half + 1);
    }
    CHECK(f32_to_f16(65519.996f) == 0x7bff && f32_to_f16(65520.0f) == 0x7c00);
    CHECK(f32_to_f16(-1e30f) == 0xfc00 && f32_to_f16(__builtin_inff()) == 0x7c00);
    CHECK(f32_to_f16(0x1p-25f) == 0 && f32_to_f16(-0x1p-25f) == 0x8000);
    CHECK(f32_to_f16(0x1.000002p-25f) == 1 && f32_to_f16(0x1p-149f) == 0);
    CHECK(f32_to_f16(0x1.ffffp-15f) == 0x0400); // a subnormal that rounds up to a normal
    for (u32 b = 0; b < 0x10000; b++) CHECK(f32_bits(bf16_to_f32((u16)b)) == b << 16);
}

// --- golden blocks ---

struct scanner {
    struct str text;
    usize at;
};

// Moves behind the next occurrence of `word`; false when there is none.
static bool skip_past(struct scanner *s, struct str word) {
    for (usize i = s->at; i + word.len <= s->text.len; i++) {
        if (memcmp(s->text.data + i, word.data, word.len) != 0) continue;
        s->at = i + word.len;
        return true;
    }
    return false;
}

static i32 hex_digit(u8 c) {
    if (c >= '0' && c <= '9') return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Up to `n_digits` hex digits; returns how many there were.
static u32 read_hex(struct scanner *s, u32 n_digits, u32 *value) {
    u32 n = 0;
    for (*value = 0; n < n_digits && s->at < s->text.len; n++, s->at++) {
        i32 digit = hex_digit(s->text.data[s->at]);
        if (digit < 0) break;
        *value = *value << 4 | (u32)digit;
    }
    return n;
}

static u64 read_number_after(struct str text, struct str name) {
    struct scanner s = {text, 0};
    u64 value = 0;
    if (!skip_past(&s, name)) return 0;
    for (; s.at < text.len && text.data[s.at] >= '0' && text.data[s.at] <= '9'; s.at++) {
        value = value * 10 + (u64)(text.data[s.at] - '0');
    }
    return value;
}

#define BLOCK_BYTES_MAX 1024 // of a golden block; float types have several elements in one
#define BLOCK_ELEMENTS_MAX 256

static void check_golden_file(struct str text, enum dtype type) {
    const char *name = dtype_name(type);
    u32 n_blocks = 0;
    CHECK_MSG(read_number_after(text, STR("\"ggml_type_id\": ")) == (u64)type, "%s", name);
    struct scanner s = {text, 0};
    while (skip_past(&s, STR("\"raw\": \""))) {
        u8 raw[BLOCK_BYTES_MAX + 1];
        f32 got[BLOCK_ELEMENTS_MAX];
        u32 n_bytes = 0, n = 0, value, n_different = 0;
        while (n_bytes < BLOCK_BYTES_MAX && read_hex(&s, 2, &value) == 2) {
            raw[1 + n_bytes++] = (u8)value; // an odd address: rows need no alignment
        }
        const struct dtype_info *info = dtype_lookup(type);
        u32 n_elements = n_bytes / info->block_bytes * info->block_elements;
        CHECK_MSG(n_elements > 0 && n_elements <= BLOCK_ELEMENTS_MAX, "%s: %u elements", name,
                  n_elements);
        if (n_elements == 0 || n_elements > BLOCK_ELEMENTS_MAX) return;
        dtype_dequantise(type, raw + 1, n_elements, got);
        CHECK(skip_past(&s, STR("\"f32_bits\": \"")));
        while (read_hex(&s, 8, &value) == 8) {
            n_different += n < n_elements && f32_bits(got[n]) != value;
            n++;
            if (s.at < text.len && text.data[s.at] == ' ') s.at++;
        }
        CHECK_MSG(n == n_elements, "%s block %u: %u values for %u elements", name, n_blocks, n,
                  n_elements);
        CHECK_MSG(n_different == 0, "%s block %u: %u values differ", name, n_blocks, n_different);
        n_blocks++;
    }
    CHECK_MSG(n_blocks > 0 && n_blocks == read_number_after(text, STR("\"count\": ")),
              "%s: %u blocks found", name, n_blocks);
}

static bool can_be_opened(const char *path) {
    int file;
    if (platform_open(path, PLATFORM_OPEN_READ, &file, NULL) != SOV_OK) return false;
    platform_close(file);
    return true;
}

static void golden(void) {
    const char *folder = test_option("GOLDEN");
    if (folder == NULL) folder = "../shared/golden";
    for (u32 i = 0; i < COUNT_OF(all_types); i++) {
        if (all_types[i] == DTYPE_F32) continue; // has no file: its values are its bits
        char path[512];
        struct text t = TEXT_OVER_ARRAY(path);
        text_format(&t, "%s/dequant/_report.json", folder);
        if (!can_be_opened(path)) {
            test_skip("no golden data; give GOLDEN=folder");
            return;
        }
        t = TEXT_OVER_ARRAY(path);
        text_format(&t, "%s/dequant/%s.json", folder, dtype_name(all_types[i]));
        struct str text = test_read_file(path);
        if (text.len != 0) check_golden_file(text, all_types[i]); // else it has failed already
    }
}

// --- rows ---

// A row of several blocks, the last group short, is its blocks one by one.
static void rows_are_their_blocks(void) {
    struct test_random random = {SEED};
    static u8 row[7 * 256 * 4 + 1];
    static f32 whole[7 * 256], part[256];
    for (u32 i = 0; i < COUNT_OF(all_types); i++) {
        const struct dtype_info *info = dtype_lookup(all_types[i]);
        u32 n_blocks = info->block_elements == 256 ? 3 : 19;
        u32 n = n_blocks * info->block_elements, different = 0;
        for (u32 b = 0; b < sizeof row; b++) row[b] = (u8)test_random_u64(&random);
        dtype_dequantise(all_types[i], row + 1, n, whole);
        for (u32 b = 0; b < n_blocks; b++) {
            dtype_dequantise(all_types[i], row + 1 + b * info->block_bytes, info->block_elements,
                             part);
            different += memcmp(part, whole + b * info->block_elements,
                                info->block_elements * sizeof(f32)) != 0;
        }
        CHECK_MSG(different == 0, "%s: %u blocks", info->name, different);
    }
    dtype_dequantise(DTYPE_F32, row + 1, 100, whole);
    CHECK(memcmp(row + 1, whole, 400) == 0);
}

// Extremes of the integers that the proofs of docs/contract.md rest on.
static void integer_ranges(void) {
    static const struct {
        enum dtype type;
        i32 q_min, q_max, scale_min, scale_max, min_max;
    } ranges[] = {
        {DTYPE_Q4_0, -8, 7, 0, 0, 0},     {DTYPE_Q4_1, 0, 15, 0, 0, 0},
        {DTYPE_Q5_0, -16, 15, 0, 0, 0},   {DTYPE_Q5_1, 0, 31, 0, 0, 0},
        {DTYPE_Q8_0, -128, 127, 0, 0, 0}, {DTYPE_Q2_K, 0, 3, 0, 15, 15},
        {DTYPE_Q3_K, -4, 3, -32, 31, 0},  {DTYPE_Q4_K, 0, 15, 0, 63, 63},
        {DTYPE_Q5_K, 0, 31, 0, 63, 63},   {DTYPE_Q6_K, -32, 31, -128, 127, 0},
    };
    struct test_random random = {SEED + 1};
    for (u32 i = 0; i < COUNT_OF(ranges); i++) {
        const struct dtype_info *info = dtype_lookup(ranges[i].type);
        i32 q_min = 0, q_max = 0, scale_min = 0, scale_max = 0, min_max = 0, min_min = 0;
        for (u32 round = 0; round < 3000; round++) {
            u8 blocks[8 * 34];
            struct dtype_group group = {0};
            for (u32 b = 0; b < sizeof blocks; b++) blocks[b] = (u8)test_random_u64(&random);
            dtype_unpack_group(ranges[i].type, blocks, 256, &group);
            for (u32 e = 0; e < 256; e++) {
                q_min = MIN(q_min, group.q[e]);
                q_max = MAX(q_max, group.q[e]);
                scale_min = MIN(scale_min, group.scale[e / 16]);
                scale_max = MAX(scale_max, group.scale[e / 16]);
                min_min = MIN(min_min, group.min[e / 16]);
                min_max = MAX(min_max, group.min[e / 16]);
            }
        }
        CHECK_MSG(q_min == ranges[i].q_min && q_max == ranges[i].q_max, "%s: q %d to %d",
                  info->name, q_min, q_max);
        CHECK_MSG(scale_min == ranges[i].scale_min && scale_max == ranges[i].scale_max,
                  "%s: scale %d to %d", info->name, scale_min, scale_max);
        CHECK_MSG(min_min == 0 && min_max == ranges[i].min_max, "%s: min to %d", info->name,
                  min_max);
    }
}

static const struct test_case cases[] = {
    {"table", table},
    {"half_conversions", half_conversions},
    {"golden", golden},
    {"rows_are_their_blocks", rows_are_their_blocks},
    {"integer_ranges", integer_ranges},
};

int program_main(const struct platform_start *start) {
    return test_main(start, "test_dtype", cases, COUNT_OF(cases));
}
