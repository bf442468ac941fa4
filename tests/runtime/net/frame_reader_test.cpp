#include "runtime/net/frame_reader.h"

#include <cstring>

#include "runtime/base/random.h"
#include "tests/runtime/net/support.h"

namespace troupe::net {
namespace {

std::vector<std::byte> stream_of(const std::vector<std::vector<std::byte>>& frames) {
  std::vector<std::byte> stream;
  for (const auto& frame : frames) {
    const auto length = static_cast<std::uint32_t>(frame.size());
    const auto header = std::as_bytes(std::span(&length, 1));
    stream.insert(stream.end(), header.begin(), header.end());
    stream.insert(stream.end(), frame.begin(), frame.end());
  }
  return stream;
}

TEST_CASE("frames come out whole however the stream is cut") {
  SeededRandom random(3);
  std::vector<std::vector<std::byte>> frames;
  for (const std::size_t size : {0u, 1u, 3u, 40'000u, 32'764u, 32'765u, 0u, 700'000u, 5u}) {
    frames.emplace_back(size);
    random.fill(frames.back());
  }
  const auto stream = stream_of(frames);
  for (const std::size_t step : {1u, 3u, 1000u, 1'000'000u}) {
    FrameReader reader(1u << 20);
    std::vector<std::vector<std::byte>> seen;
    std::size_t at = 0;
    while (at < stream.size()) {
      const auto space = reader.space();
      REQUIRE_FALSE(space.empty());
      const std::size_t count = std::min({step, space.size(), stream.size() - at});
      std::memcpy(space.data(), stream.data() + at, count);
      at += count;
      REQUIRE(reader
                  .filled(count,
                          [&](std::span<const std::byte> frame) {
                            seen.emplace_back(frame.begin(), frame.end());
                            return true;
                          })
                  .ok());
    }
    CHECK(seen == frames);
    CHECK_FALSE(reader.in_frame());
  }
}

TEST_CASE("a length above the limit is refused, and a large one reserves little") {
  FrameReader reader(64u << 20);
  const auto announce = [&](std::uint32_t length) {
    const auto space = reader.space();
    std::memcpy(space.data(), &length, 4);
    return reader.filled(4, [](auto) { return true; });
  };
  CHECK(announce(64u << 20).ok());
  CHECK(reader.in_frame());
  CHECK(reader.space().size() <= 512u << 10);

  FrameReader other(1000);
  const std::uint32_t length = 1001;
  std::memcpy(other.space().data(), &length, 4);
  CHECK(other.filled(4, [](auto) { return true; }).code() == Code::kProtocol);
}

}  // namespace
}  // namespace troupe::net
