#include "train/checkpoint/rank_exchange.h"

#include <numeric>

namespace troupe::train {
namespace {

// What a person reads of another rank's failure.
constexpr std::size_t kMessageBytesMax = 4096;

}  // namespace

Result<std::vector<std::int64_t>> exchange_numbers(collective::Communicator& communicator,
                                                   std::span<const std::int64_t> mine,
                                                   const std::vector<std::size_t>& counts,
                                                   std::optional<Deadline> deadline) {
  std::vector<std::int64_t> all(std::accumulate(counts.begin(), counts.end(), std::size_t{0}));
  TROUPE_RETURN_IF_ERROR(communicator.all_gather(mine, std::span(all), counts, deadline));
  return all;
}

Result<std::vector<std::string>> exchange_texts(collective::Communicator& communicator,
                                                const std::string& mine,
                                                const std::vector<std::size_t>& sizes) {
  std::string all(std::accumulate(sizes.begin(), sizes.end(), std::size_t{0}), '\0');
  TROUPE_RETURN_IF_ERROR(
      communicator.all_gather(std::span<const char>(mine), std::span<char>(all), sizes));
  std::vector<std::string> texts;
  std::size_t begin = 0;
  for (const auto size : sizes) {
    texts.push_back(all.substr(begin, size));
    begin += size;
  }
  return texts;
}

Status exchange_failure(collective::Communicator& communicator, Status& outcome) {
  const auto world = static_cast<std::size_t>(communicator.world_size());
  const std::string message = outcome.ok() ? "" : outcome.to_string().substr(0, kMessageBytesMax);
  const std::int64_t mine[] = {static_cast<std::int64_t>(outcome.code()),
                               static_cast<std::int64_t>(message.size())};
  const auto numbers =
      TROUPE_TRY(exchange_numbers(communicator, mine, std::vector<std::size_t>(world, 2)));
  std::vector<std::size_t> sizes;
  for (std::size_t rank = 0; rank < world; ++rank) {
    sizes.push_back(static_cast<std::size_t>(numbers[2 * rank + 1]));
  }
  const auto messages = TROUPE_TRY(exchange_texts(communicator, message, sizes));
  outcome = error(Code::kInternal, "a failure was told of that no rank had");
  for (std::size_t rank = world; rank-- > 0;) {
    const auto code = code_from_number(static_cast<int>(numbers[2 * rank]));
    if (code != Code::kOk) outcome = error(code, "rank {}: {}", rank, messages[rank]);
  }
  return {};
}

}  // namespace troupe::train
