#pragma once
// The output of a job's actors, line by line, from every node that they run on: connections of its
// own to the nodes, which come and go as the head tells. Nothing passes through the head.

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/base/ids.h"
#include "runtime/net/event_loop.h"
#include "runtime/net/transport.h"
#include "scheduler/client/head_client.h"

namespace troupe::scheduler {

struct OutputFollowerOptions {
  JobId job_id;      // whose actors; empty: `actor_id` alone
  ActorId actor_id;  // empty: all of the job's
  NodeId except;     // a node whose output comes another way; empty: none
  // Each whole line with the actor's label, and sentences about lines that were left out. Loop
  // thread.
  std::function<void(const std::string& actor, std::string_view line)> on_line;
  // Instead of on_line: who wants to know which actor's and which stream's a line is, and its parts
  // as they are written.
  std::function<void(const wire::OutputLine& line)> on_output;
};

// Thread-safe.
class OutputFollower {
 public:
  // Loop and client outlive it.
  OutputFollower(net::EventLoop& loop, std::shared_ptr<HeadClient> head, net::Token token,
                 OutputFollowerOptions options);
  ~OutputFollower();  // close()
  OutputFollower(const OutputFollower&) = delete;
  OutputFollower& operator=(const OutputFollower&) = delete;

  // Waits until the lines that were written before the call have been passed on, as far as their
  // nodes answer in time; false: the time was too short. Not on the loop's thread.
  bool catch_up(Duration timeout);
  // No line comes afterwards. Any thread but the loop's.
  void close();

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace troupe::scheduler
