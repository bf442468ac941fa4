#pragma once
// What processes have under way beside actors (runtime/wire/work.h), in words.

#include <string>
#include <vector>

#include "runtime/wire/control_messages.h"

namespace troupe::tools {

// For `troupe status`: "Tasks      4 running, 12 waiting" and the like; empty where there is
// nothing.
std::string summary_of_work(const std::vector<wire::ClientWork>& clients);

// For `troupe why`: a line for what of the client's waits, and for what.
std::string waits_of_work(const wire::ClientWork& client);

}  // namespace troupe::tools
