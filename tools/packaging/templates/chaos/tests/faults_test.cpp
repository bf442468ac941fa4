// A cluster of three nodes on this machine. The node of the book is killed whole, with its memory, half-way
// through the bookings: each that was answered is in the book, once. Head and nodes are the command `troupe`.

#include <cstdio>

#include <troupe/chaos_cluster.h>
#include <troupe/deliveries.h>

#include "actors.h"

using namespace std::chrono_literals;
using troupe::Deadline;

int main(int argc, char** argv) {
  if (auto code = troupe::host_main(argc, argv, troupe::actors<Book>)) return *code;

  auto machines = troupe::ChaosCluster::start({.nodes = 3}, Deadline::after(30s));
  if (!machines.ok()) {
    std::fprintf(stderr, "%s\n", machines.status().to_string().c_str());
    return 1;
  }
  troupe::ChaosCluster& nodes = **machines;
  auto driver = nodes.connect().value();
  auto book = driver.spawn<Book>({.name = "book", .max_restarts = -1, .replicas = 1}).value();
  const auto caller = book.with({.timeout = 30s, .retry = true});
  troupe::Deliveries log;
  for (std::uint64_t i = 0; i < 200; ++i) {
    if (i == 100) {
      const int node = nodes.node_of(driver, book, Deadline::after(10s)).value();
      const bool killed = nodes.kill_node(node).ok();
      std::printf("node %d, with the book: %s\n", node, killed ? "killed" : "lives on");
    }
    log.sent(i);
    const auto sum = caller.call<&Book::add>(static_cast<std::int64_t>(i), 1).get();
    if (sum.ok()) log.acknowledged(i);
    if (!sum.ok()) std::printf("booking %d: %s\n", static_cast<int>(i), sum.status().to_string().c_str());
  }
  const auto bookings = caller.call<&Book::bookings>().get().value();
  for (const auto& booking : bookings) log.seen(static_cast<std::uint64_t>(booking.first));
  const troupe::Status once = log.exactly_once();
  std::printf("%zu bookings: %s\n", bookings.size(), once.ok() ? "each once" : once.to_string().c_str());
  driver.close();
  return once.ok() && bookings.size() == 200 ? 0 : 1;
}
