// SPDX-License-Identifier: Apache-2.0
// card_launch MODULES FILE.launch...: the launch files of docs/ptxcheck.md on a card. What ptxcheck
// executes on the CPU runs here on the device, from the same images and against the same expected
// images; exits 0 when nothing differs.
//
// All buffers of a case lie in one image with guards of 0xff around them. Each case runs twice
// where it names a power word: with the word inactive, when no byte of the image may change, then
// active, when every buffer is compared and every byte between buffers must be as it was.
#include "../ptxcheck/launch.h"
#include "driver.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_BYTES ((usize)512 << 20)
#define MODULES_MAX 32
#define SLACK 512 // bytes between buffers, at the least

static struct {
    u8 *sent, *found; // [IMAGE_BYTES]
    device_ptr device;
    struct {
        char name[NAME_BYTES];
        driver_handle handle;
    } modules[MODULES_MAX];
    u32 n_modules, n_cases, n_wrong;
    usize offsets[LAUNCH_BUFFERS_MAX], used;
} state;

static driver_handle module_of(const char *folder, const char *name) {
    for (u32 i = 0; i < state.n_modules; i++) {
        if (strcmp(state.modules[i].name, name) == 0) return state.modules[i].handle;
    }
    char path[512];
    assert(state.n_modules < MODULES_MAX);
    snprintf(path, sizeof path, "%s/%s.ptx", folder, name);
    u32 i = state.n_modules++;
    snprintf(state.modules[i].name, NAME_BYTES, "%s", name);
    return state.modules[i].handle = driver_module(file_text(path));
}

// Fills state.sent and state.offsets.
static void lay_out(const struct launch_case *launch, bool active) {
    state.used = 0;
    for (u32 i = 0; i < launch->n_buffers; i++) {
        const struct launch_buffer *buffer = &launch->buffers[i];
        usize at = round_up(state.used + SLACK, 256) + buffer->misalign;
        state.offsets[i] = at;
        if (buffer->role != BUFFER_HOST) state.used = at + buffer->bytes;
    }
    state.used += SLACK;
    assert(state.used <= IMAGE_BYTES);
    memset(state.sent, 0xff, state.used);
    for (u32 i = 0; i < launch->n_buffers; i++) {
        const struct launch_buffer *buffer = &launch->buffers[i];
        if (buffer->role == BUFFER_HOST) continue;
        memcpy(state.sent + state.offsets[i], buffer->contents, buffer->bytes);
        for (usize k = 0; k < buffer->bytes; k++) {
            if (!buffer->defined[k]) state.sent[state.offsets[i] + k] = 0xff;
        }
    }
    if (launch->has_power) {
        u32 word = active ? launch->power_active : launch->power_other;
        memcpy(state.sent + state.offsets[launch->power_buffer] + 4 * launch->power_index, &word,
               4);
    }
}

static void execute(const struct launch_case *launch, driver_handle module) {
    driver_upload(state.device, state.sent, state.used);
    for (u32 i = 0; i < launch->n_calls; i++) {
        const struct launch_call *call = &launch->calls[i];
        u64 values[LAUNCH_PARAMS_MAX];
        void *params[LAUNCH_PARAMS_MAX];
        for (u32 k = 0; k < call->n_params; k++) {
            const struct launch_param *param = &call->params[k];
            values[k] = param->value;
            if (param->is_address) values[k] += state.device + state.offsets[param->buffer];
            params[k] = &values[k];
        }
        assert(call->block[1] == 1 && call->block[2] == 1 && call->shared_bytes == 0);
        driver_launch(driver_function(module, call->kernel), call->grid, call->block[0], params);
    }
    driver_wait();
    driver_download(state.found, state.device, state.used);
}

// Whether every byte outside of buffers, and of power words, is as it was sent.
static bool guards_hold(const struct launch_case *launch) {
    usize at = 0;
    for (u32 i = 0; i < launch->n_buffers; i++) {
        const struct launch_buffer *buffer = &launch->buffers[i];
        if (buffer->role == BUFFER_HOST) continue;
        if (memcmp(state.sent + at, state.found + at, state.offsets[i] - at) != 0) return false;
        at = state.offsets[i] + buffer->bytes;
    }
    return memcmp(state.sent + at, state.found + at, state.used - at) == 0;
}

// True when the case is right; else says what is not.
static bool check_case(const struct launch_set *set, u32 case_idx, driver_handle module) {
    struct launch_case *launch = launch_prepare(set, case_idx);
    char message[512] = "";
    bool right = true;
    if (launch->has_power) {
        lay_out(launch, false);
        execute(launch, module);
        if (memcmp(state.sent, state.found, state.used) != 0) {
            printf("  case %u: memory changed while the power state was not active\n", case_idx);
            right = false;
        }
    }
    lay_out(launch, true);
    execute(launch, module);
    if (!guards_hold(launch)) {
        printf("  case %u: bytes between buffers changed\n", case_idx);
        right = false;
    }
    for (u32 i = 0; i < launch->n_buffers && right; i++) {
        right = launch_compare(launch, i, state.found + state.offsets[i], message, sizeof message);
        if (!right) printf("  case %u: %s\n", case_idx, message);
    }
    for (u32 i = 0; i < launch->n_same && right; i++) {
        const u8 *part = state.found + state.offsets[launch->same[i].part];
        const u8 *whole = state.found + state.offsets[launch->same[i].whole];
        right = launch_compare_same(launch, i, part, whole, message, sizeof message);
        if (!right) printf("  case %u: %s\n", case_idx, message);
    }
    launch_case_free(launch);
    return right;
}

static void check_file(const char *folder, const char *path) {
    char *text = file_read(path, NULL);
    struct launch_set *set = launch_load(path, text);
    driver_handle module = module_of(folder, set->module);
    u32 n_wrong = 0;
    for (u32 i = 0; i < set->n_cases; i++) n_wrong += !check_case(set, i, module);
    const char *name = strrchr(path, '/');
    printf("%-36s %3u cases, %u wrong\n", name == NULL ? path : name + 1, set->n_cases, n_wrong);
    fflush(stdout);
    state.n_cases += set->n_cases;
    state.n_wrong += n_wrong;
    launch_free(set);
    free(text);
}

int main(int argc, char **argv) {
    struct driver driver;
    if (argc < 3) {
        fprintf(stderr, "usage: card_launch MODULES FILE.launch...\n");
        return 2;
    }
    driver_open(&driver);
    printf("%s, driver %s, compute capability %d\n", driver.card, driver.version,
           driver.capability);
    state.sent = malloc(IMAGE_BYTES);
    state.found = malloc(IMAGE_BYTES);
    if (state.sent == NULL || state.found == NULL) return 2;
    state.device = driver_alloc(IMAGE_BYTES);
    for (int i = 2; i < argc; i++) check_file(argv[1], argv[i]);
    printf("card_launch: %u cases, %u wrong\n", state.n_cases, state.n_wrong);
    return state.n_wrong == 0 ? 0 : 1;
}
