// The program whose processes host the actors of ray_test.cpp and run the tasks of
// ray_tasks_test.cpp.

#include <unistd.h>

#include <fstream>

#include "tests/peers/ray_actors.h"
#include "tests/peers/ray_tasks.h"
#include "troupe/actor.h"

namespace troupe::tests {

int plus(int a, int b) { return a + b; }
Result<ObjectRef<int>> put_plus(ActorContext& context, Object<int> a, int b) {
  return context.put(*a + b);
}
GroupId group_of(ActorContext& context) { return context.placement_group(); }
Result<int> wait_nested(ActorContext& context, const std::string& began, const std::string& file) {
  return context.submit<&wait_for_file>(began, file).get();
}
Result<int> wait_for_file(ActorContext& context, const std::string& began,
                          const std::string& file) {
  std::ofstream(began) << "x";
  while (::access(file.c_str(), F_OK) != 0) {
    if (context.call_stop_token().stop_requested()) {
      std::ofstream(began + ".stopped") << "x";
      return Status(Code::kCancelled, "stopped");
    }
    ::usleep(1000);
  }
  return 1;
}

}  // namespace troupe::tests

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::tests::kRayActors, troupe::tests::kRayTasks)
      .value_or(2);
}
