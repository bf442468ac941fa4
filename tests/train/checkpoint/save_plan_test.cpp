#include "train/checkpoint/save_plan.h"

#include <doctest/doctest.h>

#include <algorithm>

namespace troupe::train {
namespace {

constexpr std::int64_t kElements = std::int64_t{70} << 20;  // 280 MiB of fp32

PieceDescription piece(const std::string& name, std::int64_t begin, std::int64_t end,
                       bool optimizer = false) {
  return {optimizer, name, DType::kF32, {kElements}, begin, end};
}

// Two ranks; the second has most.
std::vector<RankPieces> ranks() {
  return {{piece("w", 0, 1000), piece("exp_avg.w", 0, 1000, true)},
          {piece("w", 1000, kElements), piece("exp_avg.w", 1000, kElements, true)}};
}

TEST_CASE(
    "parts cover every file once, are cut at multiples of one size, and nothing else is cut") {
  for (const auto layout : {CheckpointLayout::kHf, CheckpointLayout::kSharded}) {
    const auto plan = make_save_plan(ranks(), layout, std::uint64_t{1} << 40).value();
    CHECK(plan.files.size() == (layout == CheckpointLayout::kHf ? 3 : 4));
    std::vector<PlannedPart> parts;
    for (const auto& rank : plan.ranks) {
      for (const auto& part : rank.parts) {
        std::uint64_t bytes = 0;
        for (std::size_t i = 0; i < part.segment_count; ++i) {
          bytes += rank.segments[part.first_segment + i].size_bytes;
        }
        CHECK(bytes == part.size_bytes);
        parts.push_back(part);
      }
    }
    std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) {
      return std::pair(a.file, a.offset) < std::pair(b.file, b.offset);
    });
    std::size_t next = 0;
    for (std::size_t file = 0; file < plan.files.size(); ++file) {
      std::uint64_t end = 0;
      while (next < parts.size() && parts[next].file == file) {
        CHECK(parts[next].offset == end);
        end += parts[next].size_bytes;
        const auto size = part_bytes(plan.files[file].size_bytes);
        CHECK(parts[next].size_bytes <= size);
        const bool at_end = end == plan.files[file].size_bytes;
        const bool before_other_rank = parts[next].offset == 0 && layout == CheckpointLayout::kHf;
        CHECK((at_end || end % size == 0 || before_other_rank));
        ++next;
      }
      CHECK(end == plan.files[file].size_bytes);
    }
    CHECK(next == parts.size());
  }
}

TEST_CASE("a part is small enough to tell which tensors a damaged byte may be of") {
  CHECK(part_bytes(0) == kPartBytesMin);
  CHECK(part_bytes(1 << 20) == kPartBytesMin);
  CHECK(part_bytes(3 << 20) == 16u << 10);
  CHECK(part_bytes(std::uint64_t{280} << 20) == 2u << 20);
  CHECK(part_bytes(std::uint64_t{1} << 40) == kPartBytesMax);
  RankPieces pieces;
  constexpr std::int64_t kMatrix = 64 << 10;  // 256 KiB of fp32
  for (int i = 0; i < 47; ++i)
    pieces.push_back({false, fmt::format("w{:02}", i), DType::kF32, {kMatrix}, 0, kMatrix});
  const auto plan = make_save_plan({pieces}, CheckpointLayout::kHf, 1u << 30).value();
  for (const auto& part : plan.ranks[0].parts) CHECK(part.segment_count <= 2);
}

TEST_CASE("what a rank gives of a tensor must lie together where it has a file of its own") {
  auto pieces = ranks();
  // Neighbours are one range.
  pieces[1] = {piece("w", 1000, 2000), piece("w", 2000, kElements)};
  pieces[0].pop_back();
  auto plan = make_save_plan(pieces, CheckpointLayout::kSharded, 1 << 20).value();
  CHECK(plan.files[1].pieces.at("w") == 1000);
  // A hole in between is filled by another rank: fine in one file of all, not in a rank's own.
  pieces[0] = {piece("w", 1000, 2000)};
  pieces[1] = {piece("w", 0, 1000), piece("w", 2000, kElements)};
  CHECK(make_save_plan(pieces, CheckpointLayout::kHf, 1 << 20).ok());
  const auto refused = make_save_plan(pieces, CheckpointLayout::kSharded, 1 << 20).status();
  CHECK(refused.code() == Code::kInvalidArgument);
  CHECK(refused.message().find("must lie together") != std::string::npos);
}

TEST_CASE("pieces are told to other ranks, and what was cut off or garbled is refused") {
  const auto pieces = ranks()[1];
  const std::string text = encode_pieces(pieces);
  const auto read = decode_pieces(text).value();
  REQUIRE(read.size() == 2);
  CHECK(read[1].optimizer);
  CHECK(read[1].name == "exp_avg.w");
  CHECK(read[1].shape == pieces[1].shape);
  CHECK(read[1].begin == 1000);
  CHECK(read[1].end == kElements);
  for (std::size_t size = 0; size < text.size(); ++size) {
    CHECK(decode_pieces(text.substr(0, size)).status().code() == Code::kProtocol);
  }
  CHECK(!decode_pieces(text + "x").ok());
  for (std::size_t i = 0; i < text.size(); ++i) {
    std::string bad = text;
    bad[i] = static_cast<char>(0xff);
    static_cast<void>(decode_pieces(bad));  // anything but a crash
  }
}

}  // namespace
}  // namespace troupe::train
