#pragma once
// What a build was configured without, to measure what it costs.

namespace troupe {

// CMake's TROUPE_RECOVERY. Off: steps are no transactions, nothing is recorded for others to read
// or watched, and a trainer that dies loads the last checkpoint. `tools/bench price` compares the
// two; nobody ships the one without. Read it with `if constexpr`, so that both ways compile.
#ifdef TROUPE_WITHOUT_RECOVERY
inline constexpr bool kRecovery = false;
#else
inline constexpr bool kRecovery = true;
#endif

}  // namespace troupe
