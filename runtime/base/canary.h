#pragma once
// Planted mistakes: a simulator that does not find them would not find real ones either. Production
// builds compile the condition to `false`; sources that are compiled with TROUPE_CANARIES, into the
// simulator alone, ask canary_planted(), which the simulator defines and sets.

#ifdef TROUPE_CANARIES
namespace troupe {
bool canary_planted(const char* name);
}
#define TROUPE_CANARY(name) ::troupe::canary_planted(name)
#else
#define TROUPE_CANARY(name) false
#endif
