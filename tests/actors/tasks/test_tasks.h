#pragma once
// The functions that the tests' tasks run.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/context.h"
#include "troupe/object.h"
#include "troupe/tasks.h"

namespace troupe::tests {

using Floats = std::vector<float>;

int twice(int n);
std::int64_t process_id();
void nothing();
Status fail(const std::string& why);
int throws(int n);
// Returns once the file is there, or its caller has given it up.
Result<std::int64_t> wait_for(ActorContext& context, const std::string& file);
// Writes "x" into the file, and ends its process so often, counted by the file's size.
int crash_times(const std::string& file, int times);
// As wait_for(), but never looks whether it was given up.
void stay(const std::string& began);
// Waits until it was given up, submits tasks then, and writes the file if it comes to that.
void submit_late(ActorContext& context, const std::string& began, const std::string& survived);
// The sum of 2, 4, …, 2n, by n tasks.
Result<int> sum_of_map(ActorContext& context, int n);
// 2^depth, by as many tasks.
Result<int> leaves(ActorContext& context, int depth);
// `depth` tasks, each waited for by the one before it.
Result<int> chain(ActorContext& context, int depth);
// 2n, by a task with so many CPUs, and then one by itself.
Result<int> by_larger_task(ActorContext& context, int n, double num_cpus);
// 0 fails; others wait until they are given up, at most 20 s.
Result<int> fail_or_wait(ActorContext& context, int n);
Result<ObjectRef<Floats>> filled(ActorContext& context, std::size_t count, float value);
double sum(Object<Floats> numbers);
int add(int a, int b);
std::string join(std::string a, std::string b);
std::string text_of(int n);
// Not among those of the program.
int unlisted(int n);

inline constexpr auto kTestTasks =
    troupe::tasks<&twice, &process_id, &nothing, &fail, &throws, &wait_for, &crash_times, &stay,
                  &submit_late, &sum_of_map, &leaves, &chain, &by_larger_task, &fail_or_wait,
                  &filled, &sum, &add, &join, &text_of>;

}  // namespace troupe::tests
