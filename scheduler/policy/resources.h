#pragma once
// Amounts of resources in fixed point (wire::kResourceUnit is one unit), so that ten times 0.1 CPU
// is exactly one CPU. "memory" counts bytes.

#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/base/status.h"
#include "runtime/wire/types.h"

namespace troupe::scheduler {

inline constexpr std::string_view kCpu = "CPU";
inline constexpr std::string_view kGpu = "GPU";
inline constexpr std::string_view kMemory = "memory";

// "2", "0.5", "4Gi", "1.5M" → fixed point. Suffixes K M G T (powers of 1,000) and Ki Mi Gi Ti.
// kInvalidArgument: not a number, negative, more than four decimals, too large.
Result<std::int64_t> parse_amount(std::string_view name, std::string_view text);

// "name=amount"; names are letters, digits, '_', '-', '.', ':'.
Result<std::pair<std::string, std::int64_t>> parse_resource(std::string_view text);

// "0.5", "4 GiB" for memory.
std::string format_amount(std::string_view name, std::int64_t amount);
// "CPU 2, memory 4 GiB"; "nothing" when empty.
std::string format_resources(const wire::Resources& resources);

// kInvalidArgument when an amount is negative, larger than parse_amount takes, or a name is empty.
Status validate(const wire::Resources& resources);

// What is asked for of GPUs: whole ones, or less than one. Which of them a process sees is its
// node's to say: nothing else may, in its environment. kInvalidArgument.
Status check_gpus(const wire::Resources& resources,
                  const std::map<std::string, std::string>& environment);

std::int64_t amount_of(const wire::Resources& resources, std::string_view name);
// Whether `available` holds every amount of `need`.
bool fits(const wire::Resources& need, const wire::Resources& available);
// Sums of amounts that validate() let through never wrap around: they end at the largest number,
// which is more than any such amount.
void add(wire::Resources& to, const wire::Resources& amount);
// Amounts may become negative only where the caller holds more than there is (a bug it checks).
void subtract(wire::Resources& from, const wire::Resources& amount);

}  // namespace troupe::scheduler
