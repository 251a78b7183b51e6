// SPDX-License-Identifier: Apache-2.0
// Whether the machine lets the engine work. A power state is an input of a step: the engine asks no
// clock and no system by itself.
//
//   ACTIVE       everything runs
//   LOW_BATTERY  on battery and below POWER_LOW_PERCENT: smaller batches, the same bits
//   SUSPEND      nothing is computed or published; running sequences are checkpointed
//
// SIGUSR1 asks for SUSPEND, SIGUSR2 resumes; the batteries are read from /sys/class/power_supply,
// or from a folder of that shape.
#pragma once
#include "platform/platform.h"

enum power_state { POWER_ACTIVE, POWER_LOW_BATTERY, POWER_SUSPEND, POWER_STATES };
const char *power_state_name(enum power_state state);

#define POWER_LOW_PERCENT 20
#define POWER_SUPPLY_FOLDER "/sys/class/power_supply"
#define POWER_BATTERY_PERIOD_NS 5000000000ull // the batteries are looked at this often

struct power {
    const char *folder; // or NULL: batteries are not looked at
    u64 battery_read_ns;
    bool battery_known, battery_low;
};
// `folder` NULL: POWER_SUPPLY_FOLDER. Begins to watch the signals.
void power_begin(struct power *power, const char *folder);
// The state now. A battery that cannot be read does not count.
enum power_state power_poll(struct power *power, u64 now_ns);
// One look at a folder: true when some battery discharges below POWER_LOW_PERCENT and no mains
// supply is online.
bool power_battery_is_low(const char *folder);
