#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <numeric>
#include <span>
#include <stdexcept>
#include <stop_token>

#include "tests/actors/tasks/test_tasks.h"

namespace troupe::tests {

int twice(int n) { return 2 * n; }
std::int64_t process_id() { return ::getpid(); }
void nothing() {}
Status fail(const std::string& why) { return Status(Code::kNotFound, why); }
int throws(int n) { throw std::runtime_error("it threw " + std::to_string(n)); }

Result<std::int64_t> wait_for(ActorContext& context, const std::string& file) {
  const auto token = context.call_stop_token();
  while (::access(file.c_str(), F_OK) != 0) {
    if (token.stop_requested()) {
      std::ofstream(file + ".given_up") << "x";
      return Status(Code::kCancelled, "given up");
    }
    ::usleep(1000);
  }
  return ::getpid();
}

int crash_times(const std::string& file, int times) {
  struct stat now {};
  const int before = ::stat(file.c_str(), &now) == 0 ? static_cast<int>(now.st_size) : 0;
  std::ofstream(file, std::ios::app) << "x";
  if (before < times) ::_exit(3);
  return before;
}

void stay(const std::string& began) {
  std::ofstream(began) << ::getpid();
  for (;;) ::usleep(1000);
}

// At most 20 s, if nobody gives it up.
static void wait_until_given_up(ActorContext& context) {
  const auto token = context.call_stop_token();
  for (int i = 0; i < 20'000 && !token.stop_requested(); ++i) ::usleep(1000);
}

void submit_late(ActorContext& context, const std::string& began, const std::string& survived) {
  std::ofstream(began) << "x";
  wait_until_given_up(context);
  for (int i = 0; i < 3; ++i) (void)context.submit<&twice>(i).get();
  std::ofstream(survived) << "x";
}

Result<int> sum_of_map(ActorContext& context, int n) {
  std::vector<int> numbers(static_cast<std::size_t>(n));
  std::iota(numbers.begin(), numbers.end(), 1);
  const auto all = TROUPE_TRY(context.tasks().map<&twice>(numbers).all());
  return std::accumulate(all.begin(), all.end(), 0);
}

Result<int> by_larger_task(ActorContext& context, int n, double num_cpus) {
  const int by_others = TROUPE_TRY(context.tasks({.num_cpus = num_cpus}).submit<&twice>(n).get());
  const int own = TROUPE_TRY(context.submit<&twice>(n).get());
  return own == by_others ? Result<int>(own) : Status(Code::kInternal, "they differ");
}

Result<int> leaves(ActorContext& context, int depth) {
  if (depth == 0) return 1;
  auto left = context.submit<&leaves>(depth - 1);
  auto right = context.submit<&leaves>(depth - 1);
  const int a = TROUPE_TRY(left.get());
  return a + TROUPE_TRY(right.get());
}

Result<int> chain(ActorContext& context, int depth) {
  return depth == 0 ? 0 : 1 + TROUPE_TRY(context.submit<&chain>(depth - 1).get());
}

Result<int> fail_or_wait(ActorContext& context, int n) {
  if (n == 0) return Status(Code::kInvalidArgument, "the first one");
  wait_until_given_up(context);
  return n;
}

Result<ObjectRef<Floats>> filled(ActorContext& context, std::size_t count, float value) {
  return context.put(Floats(count, value));
}

double sum(Object<Floats> numbers) {
  return std::accumulate((*numbers).begin(), (*numbers).end(), 0.0);
}

int add(int a, int b) { return a + b; }
std::string join(std::string a, std::string b) { return a + b; }
std::string text_of(int n) { return std::to_string(n) + " "; }

Result<std::uint64_t> size_in_place(ActorContext& context, const std::string& bytes) {
  return context.submit<&size_of_view>(std::as_bytes(std::span(bytes))).get();
}
std::uint64_t size_of_view(BytesView bytes) { return bytes.size(); }

Status fail_with(const std::string& file, int code, const std::string& message) {
  std::ofstream(file, std::ios::app) << "x";
  return Status(static_cast<Code>(code), message);
}

static std::atomic<bool> cancelled{false};

Status nested_while_cancelled(ActorContext& context, const std::string& began,
                              const std::string& whole) {
  // The first of the token's callbacks is the last that runs: the nested task is cancelled before.
  const std::stop_callback after(context.call_stop_token(), [] { cancelled = true; });
  // (So large that memory which is freed is not there any more.)
  const std::vector<std::byte> bytes(40u << 20, std::byte{1});
  return context.submit<&look_at_bytes>(UntilCancelled{began}, bytes, whole).get();
}
void wait_until_cancelled(const std::string& began) {
  std::ofstream(began) << "x";
  for (int i = 0; i < 20'000 && !cancelled; ++i) ::usleep(1000);
}
void look_at_bytes(UntilCancelled, std::vector<std::byte> bytes, const std::string& whole) {
  const bool good =
      std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{1}; });
  if (good && bytes.size() == 40u << 20) std::ofstream(whole) << "x";
}

Stream<int> count_to(int n) {
  for (int i = 1; i <= n; ++i) co_yield i;
}

Stream<int> count_and_end(int n, bool throws) {
  for (int i = 1; i <= n; ++i) co_yield i;
  if (throws) throw std::runtime_error("it threw after " + std::to_string(n));
  co_yield Status(Code::kNotFound, "no more pages");
  co_yield 0;
}

Stream<int> count_into(std::string file, std::string ended) {
  const struct AtEnd {
    std::string file;
    ~AtEnd() { std::ofstream(file) << "x"; }
  } at_end{std::move(ended)};
  for (int i = 1;; ++i) {
    std::ofstream(file, std::ios::app) << "x";
    co_yield i;
  }
}

Stream<int> count_and_crash(std::string file, int times, int at, int n) {
  for (int i = 1; i <= n; ++i) {
    if (i == at) (void)crash_times(file, times);
    co_yield i;
  }
}

Stream<int> doubles(ActorContext& context, int n) {
  for (int i = 1; i <= n; ++i) co_yield context.submit<&twice>(i).get();
}

Result<int> sum_of_stream(ActorContext& context, int n, double num_cpus) {
  auto numbers = context.tasks({.num_cpus = num_cpus, .stream_window = 3}).submit<&count_to>(n);
  int sum = 0;
  for (;;) {
    const auto number = TROUPE_TRY(numbers.next(std::chrono::seconds(20)));
    if (!number) return sum;
    sum += *number;
  }
}

Stream<ObjectRef<Floats>> objects_to(ActorContext& context, int n) {
  for (int i = 1; i <= n; ++i) {
    co_yield context.put(Floats(static_cast<std::size_t>(i), static_cast<float>(i)));
  }
}

std::vector<std::byte> bytes_of(std::size_t count) {
  return std::vector<std::byte>(count, std::byte{7});
}

}  // namespace troupe::tests

int main(int argc, char** argv) {
  return troupe::host_main(argc, argv, troupe::tests::kTestTasks).value_or(2);
}
