#pragma once
// Python interpreters that stand by: they have imported what the script imports, and become a rank
// when one is needed. Most of what a restart takes is that import.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "runtime/base/status.h"

namespace troupe::tools {

// The words that start one for the rank whose own are `rank_words`. Nothing where those are not
// Python's with a script. `pipe`: a FIFO that exists.
std::optional<std::vector<std::string>> standby_words(const std::vector<std::string>& rank_words,
                                                      const std::string& pipe);

// Makes the one that listens at `pipe` the rank with these words (the same interpreter and script)
// and variables. kUnavailable where nobody listens, or takes it at once.
Status wake_standby(const std::string& pipe, const std::vector<std::string>& rank_words,
                    const std::map<std::string, std::string>& environment);

}  // namespace troupe::tools
