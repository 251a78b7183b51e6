// SPDX-License-Identifier: Apache-2.0
// Signals and batteries to one power state. A folder of power supplies has a folder for each:
//
//   BAT0/type      "Battery"       AC/type    "Mains"
//   BAT0/status    "Discharging"   AC/online  "1"
//   BAT0/capacity  "17"
#include "engine/power.h"
#include "freestanding/text.h"

#define NAMES_BYTES 4096
#define PATH_BYTES 512
#define VALUE_BYTES 64

const char *power_state_name(enum power_state state) {
    static const char *const names[POWER_STATES] = {
        [POWER_ACTIVE] = "active",
        [POWER_LOW_BATTERY] = "low battery",
        [POWER_SUSPEND] = "suspend",
    };
    return (u32)state < POWER_STATES ? names[state] : "?";
}

void power_begin(struct power *power, const char *folder) {
    *power = (struct power){.folder = folder != NULL ? folder : POWER_SUPPLY_FOLDER};
    platform_watch_power();
}

// The first line of FOLDER/SUPPLY/NAME; empty when it cannot be read.
static struct str read_value(const char *folder, const char *supply, const char *name,
                             char buffer[VALUE_BYTES]) {
    char path[PATH_BYTES];
    struct text t = TEXT_OVER_ARRAY(path);
    text_format(&t, "%s/%s/%s", folder, supply, name);
    int descriptor = -1;
    usize n = 0;
    if (t.truncated || platform_open(path, PLATFORM_OPEN_READ, &descriptor, NULL) != SOV_OK) {
        return (struct str){NULL, 0};
    }
    if (platform_read(descriptor, buffer, VALUE_BYTES, &n, NULL) != SOV_OK) n = 0;
    platform_close(descriptor);
    usize len = 0;
    while (len < n && buffer[len] != '\n') len++;
    return (struct str){(const u8 *)buffer, len};
}

static bool value_is(const char *folder, const char *supply, const char *name, struct str wanted) {
    char buffer[VALUE_BYTES];
    return str_equal(read_value(folder, supply, name, buffer), wanted);
}

bool power_battery_is_low(const char *folder) {
    char names[NAMES_BYTES], buffer[VALUE_BYTES];
    usize n_bytes = 0;
    bool low = false, on_mains = false;
    if (platform_folder_names(folder, names, sizeof names, &n_bytes, NULL) != SOV_OK) return false;
    for (const char *name = names; name < names + n_bytes; name += str_from_z(name).len + 1) {
        if (value_is(folder, name, "scope", STR("Device"))) continue; // of a mouse, say
        if (value_is(folder, name, "type", STR("Battery"))) {
            u64 percent = 100;
            bool known = text_parse_u64(read_value(folder, name, "capacity", buffer), &percent);
            bool discharges = value_is(folder, name, "status", STR("Discharging"));
            low = low || (known && discharges && percent < POWER_LOW_PERCENT);
        } else {
            on_mains = on_mains || value_is(folder, name, "online", STR("1"));
        }
    }
    return low && !on_mains;
}

enum power_state power_poll(struct power *power, u64 now_ns) {
    if (__atomic_load_n(platform_suspend_word(), __ATOMIC_RELAXED) != 0) return POWER_SUSPEND;
    bool is_old = now_ns - power->battery_read_ns >= POWER_BATTERY_PERIOD_NS;
    if (!power->battery_known || is_old) {
        power->battery_low = power_battery_is_low(power->folder);
        power->battery_known = true;
        power->battery_read_ns = now_ns;
    }
    return power->battery_low ? POWER_LOW_BATTERY : POWER_ACTIVE;
}
