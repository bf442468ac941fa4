// A node's daemon in a process of its own, and its keeper, for keeper_test.cpp:
// PROGRAM HEAD_PORT NODE_ID HOLD_MS LOG_DIR.

#include <signal.h>

#include <cstdio>
#include <cstdlib>

#include "runtime/process/keeper.h"
#include "scheduler/node/node_daemon.h"

int main(int argc, char** argv) {
  using namespace troupe;
  if (const auto exit_code = process::keeper_main(argc, argv)) return *exit_code;
  if (argc != 5) return 2;
  const auto loop = net::make_event_loop();
  scheduler::NodeOptions options;
  options.head = {"127.0.0.1", static_cast<std::uint16_t>(std::atoi(argv[1])), {}};
  options.node_id = NodeId::parse(argv[2]).value();
  options.parent = scheduler::Parent::kKeeper;
  options.keeper_hold = std::chrono::milliseconds(std::atoi(argv[3]));
  options.log_dir = argv[4];
  options.name = "test";
  options.token = net::Token(32, std::byte{9});
  options.resources = {{"CPU", 64 * wire::kResourceUnit}};
  options.log_level = LogLevel::kError;
  int exit_code = 0;
  options.on_stopped = [&](const Status& status) {
    exit_code = status.ok() ? 0 : 1;
    loop->stop();
  };
  auto node = scheduler::NodeDaemon::start(*loop, std::move(options));
  if (!node.ok()) {
    std::fprintf(stderr, "%s\n", node.status().to_string().c_str());
    return 3;
  }
  loop->on_signal(SIGTERM, [&] { (*node)->leave("asked to"); });
  loop->run();
  node->reset();
  return exit_code;
}
