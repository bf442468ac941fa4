#pragma once
// The functions of ray_tasks_test.cpp: their code is the workers' (ray_host.cpp).

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/context.h"
#include "troupe/object.h"
#include "troupe/tasks.h"

namespace troupe::tests {

int plus(int a, int b);
Result<ObjectRef<int>> put_plus(ActorContext& context, Object<int> a, int b);
GroupId group_of(ActorContext& context);
// Submits a task that waits until the file is there, and waits for it.
Result<int> wait_nested(ActorContext& context, const std::string& began, const std::string& file);
Result<int> wait_for_file(ActorContext& context, const std::string& began, const std::string& file);

inline constexpr auto kRayTasks =
    troupe::tasks<&plus, &put_plus, &group_of, &wait_nested, &wait_for_file>;

}  // namespace troupe::tests
