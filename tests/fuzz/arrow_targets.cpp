// Parquet files and Arrow's own, through Apache Arrow's library where it is here.
#include <cstdio>

#include "runtime/base/check.h"
#include "runtime/base/file_system.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/support/test_data.h"
#include "train/arrow/arrow_library.h"
#include "train/arrow/arrow_rows.h"

namespace troupe::tests {
namespace {

using namespace train;

bool arrow_is_here() {
  static const bool here = [] {
    const auto table = arrow_table();
    if (!table.ok()) std::printf("SKIPPED: %s\n", table.status().message().c_str());
    return table.ok();
  }();
  return here;
}

void run_arrow(std::span<const std::byte> input) {
  if (!arrow_is_here()) return;
  FuzzInput in(input);
  const ArrowKind kind = in.u8() % 2 == 0 ? ArrowKind::kParquet : ArrowKind::kIpc;
  constexpr std::int64_t kRowsMax = 100;
  std::int64_t rows = 0;
  const auto visit = [&](const json::Object& row, std::int64_t number) -> Result<bool> {
    TROUPE_CHECK(number == rows, "row {} is told as {}", rows, number);
    (void)json::write(row);
    return ++rows < kRowsMax;
  };
  (void)read_arrow_rows(in.rest(), kind, "f", visit);
}

// What pyarrow wrote (tools/golden/make_arrow_files.py).
std::vector<FuzzBytes> arrow_seeds() {
  PosixFileSystem files;
  std::vector<FuzzBytes> seeds;
  for (const char* name :
       {"rows.parquet", "stream.arrow", "file.arrow", "views.arrow", "small_plain.parquet",
        "small_packed.parquet", "small_stream.arrow", "small_file.arrow"}) {
    const auto bytes =
        files.read(source_dir() + "/tests/golden/arrow/" + name, std::uint64_t{1} << 20);
    TROUPE_CHECK(bytes.ok(), "{}", bytes.status().to_string());
    FuzzSeed seed;
    seed.u8(std::string_view(name).ends_with(".parquet") ? 0 : 1);
    seeds.push_back(seed.rest(std::as_bytes(std::span(*bytes))).take());
  }
  return seeds;
}

}  // namespace

// Arrow makes room for a page of the size that the file says, within its limits: pages of memory
// are most of what such an input takes.
constinit const FuzzTarget kArrowTarget{"arrow",      "parquet files and Arrow's own",
                                        12288,        &run_arrow,
                                        &arrow_seeds, std::chrono::milliseconds(1000)};

}  // namespace troupe::tests
