// The targets under libFuzzer (tools/fuzz):
//
//   troupe_fuzz --target=NAME [libFuzzer's own flags] CORPUS
//   troupe_fuzz --write-seeds=FOLDER     a folder of seeds for each target, then ends
//   troupe_fuzz --list                   their names and what they read, then ends

#include <sanitizer/allocator_interface.h>
#include <time.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/base/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/input_limits.h"

namespace troupe::tests {
namespace {

const FuzzTarget* chosen_target = nullptr;

// What the input under way holds of memory now, and the most it held.
std::atomic<std::int64_t> held_bytes{0};
std::atomic<std::int64_t> most_held_bytes{0};

void on_malloc(const volatile void*, std::size_t size) {
  const auto held =
      held_bytes.fetch_add(static_cast<std::int64_t>(size)) + static_cast<std::int64_t>(size);
  if (held > most_held_bytes) most_held_bytes = held;
}

void on_free(const volatile void* pointer) {
  if (pointer == nullptr) return;
  held_bytes.fetch_sub(
      static_cast<std::int64_t>(__sanitizer_get_allocated_size(const_cast<const void*>(pointer))));
}

// Of this thread: a machine that does other work meanwhile does not make an input slow.
std::chrono::nanoseconds processor_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + std::chrono::nanoseconds(now.tv_nsec);
}

std::chrono::nanoseconds run_once(std::span<const std::byte> input) {
  held_bytes = most_held_bytes = 0;
  const auto begin = processor_time();
  chosen_target->run(input);
  const auto taken = processor_time() - begin;
  TROUPE_CHECK(most_held_bytes <= static_cast<std::int64_t>(kInputMemoryMax),
               "an input of {} bytes made {} hold {} bytes", input.size(), chosen_target->name,
               most_held_bytes.load());
  return taken;
}

void run_limited(std::span<const std::byte> input) {
  if (run_once(input) <= chosen_target->time_max) return;
  // Once more: the first time may have loaded what later inputs find loaded.
  const auto taken = run_once(input);
  TROUPE_CHECK(taken <= chosen_target->time_max, "an input of {} bytes took {} {:.0f} ms",
               input.size(), chosen_target->name, static_cast<double>(taken.count()) / 1e6);
}

void write_seeds(const std::filesystem::path& folder) {
  for (const FuzzTarget& target : fuzz_targets()) {
    const auto directory = folder / target.name;
    std::filesystem::create_directories(directory);
    int number = 0;
    for (const FuzzBytes& seed : target.seeds()) {
      const auto path = directory / ("seed-" + std::to_string(number++));
      std::ofstream file(path, std::ios::binary);
      file.write(reinterpret_cast<const char*>(seed.data()),
                 static_cast<std::streamsize>(seed.size()));
      if (!file.flush()) {
        std::fprintf(stderr, "troupe_fuzz: cannot write %s\n", path.c_str());
        std::exit(1);
      }
    }
  }
}

[[noreturn]] void list_targets() {
  for (const FuzzTarget& target : fuzz_targets()) {
    std::printf("%-18s %6zu  %s\n", std::string(target.name).c_str(), target.bytes_max,
                std::string(target.reads).c_str());
  }
  std::exit(0);
}

}  // namespace
}  // namespace troupe::tests

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  using namespace troupe::tests;
  constexpr std::string_view kTarget = "--target=";
  constexpr std::string_view kSeeds = "--write-seeds=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view argument = (*argv)[i];
    if (argument == "--list") list_targets();
    if (argument.starts_with(kSeeds)) {
      write_seeds(argument.substr(kSeeds.size()));
      std::exit(0);
    }
    if (argument.starts_with(kTarget)) {
      chosen_target = find_fuzz_target(argument.substr(kTarget.size()));
    }
  }
  if (chosen_target == nullptr) {
    std::fprintf(stderr, "troupe_fuzz: give --target=NAME, one of --list\n");
    std::exit(2);
  }
  if (__sanitizer_install_malloc_and_free_hooks(&on_malloc, &on_free) == 0) {
    std::fprintf(stderr, "troupe_fuzz: memory cannot be watched\n");
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  troupe::tests::run_limited(std::as_bytes(std::span(data, size)));
  return 0;
}
