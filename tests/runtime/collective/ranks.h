#pragma once
// Threads as the ranks of a group.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/collective/cpu_communicator.h"

namespace troupe::collective::tests {

inline CommunicatorOptions options_for(int rank, int world_size) {
  CommunicatorOptions options;
  options.rank = rank;
  options.world_size = world_size;
  options.generation = 7;
  options.name = "test";
  options.default_timeout = std::chrono::seconds(20);
  // What is registered is read in place although these ranks sleep and their buffers are small.
  options.in_place_bytes = 8u << 10;
  return options;
}

// nodes[rank] as make_local_links takes it. The body may end its communicator early.
inline void run_owners(const std::vector<int>& nodes,
                       const std::function<void(std::unique_ptr<Communicator>)>& body) {
  auto links = make_local_links(nodes).value();
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    threads.emplace_back([&, r] {
      auto c = make_cpu_communicator(
          options_for(static_cast<int>(r), static_cast<int>(nodes.size())), std::move(links[r]));
      if (c.ok()) {
        body(std::move(c).value());
      } else {
        FAIL_CHECK(c.status().to_string());
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

inline void run_threads(const std::vector<int>& nodes,
                        const std::function<void(Communicator&)>& body) {
  run_owners(nodes, [&](std::unique_ptr<Communicator> c) { body(*c); });
}

}  // namespace troupe::collective::tests
