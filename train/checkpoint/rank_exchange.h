#pragma once
// Small things that ranks tell each other through a communicator. Collective calls; an error is the
// communicator's. Without a deadline: the communicator's default. Private to this folder.

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "runtime/collective/communicator.h"

namespace troupe::train {

// `counts[r]` numbers of each rank r, one rank's behind the other's.
Result<std::vector<std::int64_t>> exchange_numbers(collective::Communicator& communicator,
                                                   std::span<const std::int64_t> mine,
                                                   const std::vector<std::size_t>& counts,
                                                   std::optional<Deadline> deadline = {});

// Every rank's bytes. `sizes`: of all ranks' texts.
Result<std::vector<std::string>> exchange_texts(collective::Communicator& communicator,
                                                const std::string& mine,
                                                const std::vector<std::size_t>& sizes);

// Called by all ranks once they know that at least one of them failed. `outcome`: this rank's, ok
// or not; becomes the failure of the first rank that has one, "rank 1: …", the same everywhere.
Status exchange_failure(collective::Communicator& communicator, Status& outcome);

}  // namespace troupe::train
