#pragma once
// Mistakes planted in the code itself (runtime/base/canary.h), to see that seeds find them.

#include <array>
#include <string>
#include <string_view>

#include "runtime/base/canary.h"

namespace troupe::simulation {

// Those in a client's conversation with the head (scheduler/client/head_session.cpp).
inline constexpr std::array<std::string_view, 8> kHeadSessionCanaries = {
    "session-forgets-requests",      // what is unanswered is not repeated on the next connection
    "session-repeats-out-of-order",  // it is, in another order than it was asked in
    "session-answers-twice",         // what is answered is repeated, too
    "session-reuses-ids",            // numbers begin anew with a connection
    "session-forgets-watches",       // watches are not renewed
    "session-passes-outdated",       // an update that is older than the known one is passed on
    "session-forgets-timeout",       // requests wait for a head that stays away
    "session-trusts-silence",        // an introduction that nobody answers is waited for
};

// Plants the mistake of this name in what runs in this thread, for as long as the object lives;
// none where it is empty.
class PlantedCanary {
 public:
  explicit PlantedCanary(std::string name);
  ~PlantedCanary();
  PlantedCanary(const PlantedCanary&) = delete;
  PlantedCanary& operator=(const PlantedCanary&) = delete;
};

}  // namespace troupe::simulation
