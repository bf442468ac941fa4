#pragma once
#include <cstddef>
#include <deque>
#include <vector>

#include <troupe/cluster.h>

#include "actors.h"

// Takes all items from the source and has the workers work on them in turn, at most `in_flight_max` at a
// time. An item whose worker dies is given to the next one: doing it twice does no harm.
inline troupe::Status run_pipeline(const troupe::ActorHandle<Source>& source,
                                   const std::vector<troupe::ActorHandle<Worker>>& workers,
                                   std::int64_t count, std::size_t in_flight_max = 16) {
  struct InFlight {
    std::int64_t item;
    troupe::Future<void> done;
  };
  std::deque<InFlight> in_flight;
  std::size_t turn = 0;
  const auto give = [&](std::int64_t item) {
    in_flight.push_back({item, workers[turn++ % workers.size()].call<&Worker::work>(item)});
  };
  const auto finish_oldest = [&]() -> troupe::Status {
    InFlight oldest = std::move(in_flight.front());
    in_flight.pop_front();
    const troupe::Status status = oldest.done.get();
    if (status.code() != troupe::Code::kUnavailable) return status;
    give(oldest.item);
    return {};
  };
  auto items = source.call<&Source::items>(count);
  for (;;) {
    const auto item = items.next(std::chrono::seconds(10));
    if (!item.ok()) return item.status();
    if (!*item) break;
    while (in_flight.size() >= in_flight_max) TROUPE_RETURN_IF_ERROR(finish_oldest());
    give(**item);
  }
  while (!in_flight.empty()) TROUPE_RETURN_IF_ERROR(finish_oldest());
  return {};
}
