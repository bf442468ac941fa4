#pragma once
// What tools print for people: tables with aligned columns, times, ages, amounts in use.

#include <cstdint>
#include <string>
#include <string_view>

#include "train/report/text_table.h"

namespace troupe::tools {

using Table = train::TextTable;
using train::printable;

// "12s", "3m 5s", "2h 10m", "4d 3h"
std::string format_age(std::int64_t microseconds);
// "1.5/2" of an amount in use and the total: free of the total for people.
std::string format_use(std::string_view resource, std::int64_t used, std::int64_t total);

}  // namespace troupe::tools
