#pragma once
// Waiting for a device: by asking, since what waits in the driver cannot be given a deadline.

#include <string_view>

#include "runtime/base/clock.h"
#include "runtime/base/status.h"
#include "train/cuda/device/table.h"

namespace troupe::train {

// Between two questions: at first at once, then with sleeps that grow to 0.2 ms.
class Backoff {
 public:
  void pause();

 private:
  int turns_ = 0;
};

// Errors: the library's, kDeadlineExceeded. `what` is waited for: "the copy of a chunk".
Status wait_for_event(const TroupeCudaTable& table, TroupeCudaEvent* event, Deadline deadline,
                      std::string_view what);

// Until everything on the stream is done: what the library then says of it, TROUPE_CUDA_NOT_READY
// where the deadline passed. (Its own wait has none.)
int finish(const TroupeCudaTable& table, TroupeCudaStream* stream, Deadline deadline);

// Until everything on the stream is done, for who frees what it uses: false where it is not within
// ten seconds, and what it uses must then be left where it is. A stream whose device is lost is
// done.
bool drained(const TroupeCudaTable& table, TroupeCudaStream* stream);

}  // namespace troupe::train
