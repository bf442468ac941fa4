#pragma once
// The controller's end of the driver's progress connection: lines of JSON (trainer_messages.h).
//
// Never waits for the driver, but at the run's end: a driver whose terminal is stopped must not
// hold up a recovery. One thread.

#include <cstddef>
#include <string>

#include "runtime/base/json.h"
#include "troupe/byte_stream.h"
#include "troupe/unique_fd.h"

namespace troupe::train {

class DriverLink {
 public:
  // A new connection. `first`: the line that tells where the run is; empty: none. Lines that were
  // not sent before follow.
  void connect(ByteStream stream, const json::Object& first);
  // Sent as far as the driver reads; the rest waits, also for a connection, up to a limit beyond
  // which the oldest lines are dropped.
  void send(const json::Object& line);
  // Sends what waits.
  void flush();
  // Waits until all is sent, or a few seconds.
  void flush_at_end();

 private:
  void drop();

  ByteStream stream_;
  std::string unsent_;  // whole lines but for the first, of which `sent_` bytes are gone
  std::size_t sent_ = 0;
};

}  // namespace troupe::train
