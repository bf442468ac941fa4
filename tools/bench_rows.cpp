// How fast the rows of a data file are read: a part of `tools/bench rows`.
//
//   bench_rows FILE REPEATS
//
// Prints one line of JSON: seconds of each pass over all rows, rows, bytes of their texts, and the
// most private memory, in bytes, that the process had.

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "runtime/base/file_system.h"
#include "runtime/base/json.h"
#include "train/data/records.h"

namespace {

using namespace troupe;         // NOLINT
using namespace troupe::train;  // NOLINT

template <typename T>
T must(Result<T> result) {
  if (result.ok()) return std::move(*result);
  std::fprintf(stderr, "bench_rows: %s\n", result.status().to_string().c_str());
  std::exit(exit_code(result.status().code()));
}

// Not that of mapped files, which the kernel may drop.
std::int64_t private_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    std::int64_t kilobytes = 0;
    if (word == "RssAnon:" && status >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

std::size_t text_bytes(const json::Value& value) {
  if (value.is_string()) return value.get_string().size();
  std::size_t sum = 0;
  if (value.is_array()) {
    for (const auto& item : value.get_array()) sum += text_bytes(item);
  } else if (value.is_object()) {
    for (const auto& member : value.get_object()) sum += text_bytes(member.value());
  }
  return sum;
}

}  // namespace

int main(int argc, char** argv) {
  const int repeats = argc == 3 ? std::atoi(argv[2]) : 0;
  if (repeats < 1) {
    std::fprintf(stderr, "usage: bench_rows FILE REPEATS\n");
    return 2;
  }
  PosixFileSystem files;
  const auto data = must(find_data_files(files, argv[1]));
  json::Array seconds;
  std::int64_t rows = 0, private_most = 0;
  std::size_t bytes = 0;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    rows = 0;
    bytes = 0;
    const auto begin = std::chrono::steady_clock::now();
    const Status read =
        read_records(files, data, -1, [&](const Record& record, const std::string&) -> Status {
          for (const auto& member : record) bytes += text_bytes(member.value());
          if (++rows % 1'000 == 0) private_most = std::max(private_most, private_bytes());
          return {};
        });
    if (!read.ok()) must<int>(read);
    seconds.emplace_back(
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  const json::Object out{{"seconds", std::move(seconds)},
                         {"rows", rows},
                         {"bytes", bytes},
                         {"private_bytes", private_most}};
  std::printf("%s\n", json::write(out).c_str());
  return 0;
}
