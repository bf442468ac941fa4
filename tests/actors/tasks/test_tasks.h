#pragma once
// The functions that the tests' tasks run.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "troupe/bytes_view.h"
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
// The size of what a nested task is given, which it looks at in place.
Result<std::uint64_t> size_in_place(ActorContext& context, const std::string& bytes);
std::uint64_t size_of_view(BytesView bytes);
// Writes "x" into the file, and returns this failure.
Status fail_with(const std::string& file, int code, const std::string& message);
// Runs a nested task in place, of which decoding the first argument writes the file `began` and
// waits until the task is cancelled; it writes the file `whole` where the second one is whole.
Status nested_while_cancelled(ActorContext& context, const std::string& began,
                              const std::string& whole);
struct UntilCancelled {
  std::string began;
};
void look_at_bytes(UntilCancelled, std::vector<std::byte> bytes, const std::string& whole);
// Of the workers' program.
void wait_until_cancelled(const std::string& began);
// 1 to n.
Stream<int> count_to(int n);
// The same, and then a failure, or an exception.
Stream<int> count_and_end(int n, bool throws);
// Counts without end; the file has a byte for each item, and `ended` is there afterwards.
Stream<int> count_into(std::string file, std::string ended);
// 1 to n; before the `at`-th it ends its process so often, counted by the file's size.
Stream<int> count_and_crash(std::string file, int times, int at, int n);
// 2, 4, …, 2n, by tasks.
Stream<int> doubles(ActorContext& context, int n);
// The sum of 1 to n, of a stream of a task with so many CPUs.
Result<int> sum_of_stream(ActorContext& context, int n, double num_cpus);
// Objects: of one 1, two 2, …, n n.
Stream<ObjectRef<Floats>> objects_to(ActorContext& context, int n);
// As many bytes.
std::vector<std::byte> bytes_of(std::size_t count);
// Not among those of the program.
int unlisted(int n);
Stream<int> unlisted_stream();

}  // namespace troupe::tests

template <>
struct troupe::Codec<troupe::tests::UntilCancelled> {
  static constexpr bool kSupported = true;
  static constexpr std::size_t kBytesMin = 4;
  static constexpr std::uint64_t kHash = TypeHash::of("UntilCancelled");
  static void encode(Encoder& out, const tests::UntilCancelled& value) {
    Codec<std::string>::encode(out, value.began);
  }
  static bool decode(Decoder& in, tests::UntilCancelled& value) {
    if (!Codec<std::string>::decode(in, value.began)) return false;
    tests::wait_until_cancelled(value.began);
    return true;
  }
};

namespace troupe::tests {

inline constexpr auto kTestTasks =
    troupe::tasks<&twice, &process_id, &nothing, &fail, &throws, &wait_for, &crash_times, &stay,
                  &submit_late, &sum_of_map, &leaves, &chain, &by_larger_task, &fail_or_wait,
                  &filled, &sum, &add, &join, &text_of, &size_in_place, &size_of_view, &fail_with,
                  &nested_while_cancelled, &look_at_bytes, &count_to, &count_and_end, &count_into,
                  &count_and_crash, &doubles, &sum_of_stream, &objects_to, &bytes_of>;

}  // namespace troupe::tests
