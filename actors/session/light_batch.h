#pragma once
// A call of many light actors of one host in one message (LightMethod::kEach), and its answer: what
// a group's cast sends where several of its members share a process.
//
// Arguments: the method (u32), whether each has arguments of its own (bool), the numbers as runs
// (u32 first, u32 count) behind their count, and then the arguments of all, or for each a count of
// bytes and its own. The answer has for each, in that order, whether it failed (bool), and then a
// Status, or a count of bytes and the result.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "troupe/codec.h"
#include "troupe/status.h"

namespace troupe::detail {

struct LightRun {
  std::uint32_t first = 0;
  std::uint32_t count = 0;
};

struct LightBatch {
  std::uint32_t method = 0;
  bool one_each = false;
  std::vector<LightRun> runs;

  // Adds a number, behind those that are there.
  void add(std::uint32_t number) {
    if (!runs.empty() && runs.back().first + runs.back().count == number) {
      ++runs.back().count;
    } else {
      runs.push_back({number, 1});
    }
  }
  void write(Encoder& out) const;
  // False where it is none, or has numbers that are not below `numbers_end`.
  bool read(Decoder& in, std::size_t numbers_end);
};

void put_light_arguments(Encoder& out, std::span<const std::byte> arguments);
bool get_light_arguments(Decoder& in, std::span<const std::byte>& arguments);

void put_light_answer(Encoder& out, const Result<Bytes>& answer);
// The next answer's status; `result` lies in the decoder's bytes. kProtocol where there is none.
Status get_light_answer(Decoder& in, std::span<const std::byte>& result);

}  // namespace troupe::detail
