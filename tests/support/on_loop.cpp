#include "tests/support/on_loop.h"

#include <future>

#include "runtime/base/check.h"

namespace troupe::tests {

void wait_for_work(const Post& post, const std::function<void()>& work) {
  std::packaged_task<void()> task(work);
  auto done = task.get_future();
  post([&task] { task(); });
  // (The loop would find nothing here any more.)
  TROUPE_CHECK(done.wait_for(std::chrono::seconds(20)) == std::future_status::ready,
               "the loop did not come to a test's work");
  done.get();
}

}  // namespace troupe::tests
