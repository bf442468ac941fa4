#include "runtime/net/frame_reader.h"

#include <algorithm>
#include <cstring>

#include "runtime/base/large_buffers.h"
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
                          [&](std::span<const std::byte> frame, const Attachment&) {
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
    return reader.filled(4, [](auto, const Attachment&) { return true; });
  };
  CHECK(announce(64u << 20).ok());
  CHECK(reader.in_frame());
  CHECK(reader.space().size() <= 512u << 10);

  FrameReader other(1000);
  const std::uint32_t length = 1001;
  std::memcpy(other.space().data(), &length, 4);
  CHECK(other.filled(4, [](auto, const Attachment&) { return true; }).code() == Code::kProtocol);
}

TEST_CASE("attachments come with their frames however the stream is cut, the larger ones empty") {
  constexpr std::uint64_t kLargest = 600'000;
  SeededRandom random(4);
  std::vector<std::vector<std::byte>> frames, attachments;
  std::vector<std::byte> stream;
  const auto put = [&](const void* data, std::size_t size) {
    const auto* bytes = static_cast<const std::byte*>(data);
    stream.insert(stream.end(), bytes, bytes + size);
  };
  for (const std::size_t size : {0u, 1u, 40'000u, 600'000u, 600'001u, 32'700u, 7u, 900'000u}) {
    auto& frame = frames.emplace_back(size % 1000);
    auto& attachment = attachments.emplace_back(size);
    random.fill(frame);
    random.fill(attachment);
    const auto length = static_cast<std::uint32_t>(frame.size()) | (size > 0 ? kAttachmentFlag : 0);
    put(&length, sizeof length);
    if (size > 0) put(&size, sizeof size);
    put(frame.data(), frame.size());
    put(attachment.data(), size);
  }
  for (const std::size_t step : {1u, 3u, 1000u, 1'000'000u}) {
    FrameReader reader(1u << 20, kLargest);
    std::size_t seen = 0;
    std::size_t at = 0;
    const auto on_frame = [&](std::span<const std::byte> frame, const Attachment& attachment) {
      REQUIRE(seen < frames.size());
      CHECK(std::ranges::equal(frame, frames[seen]));
      const auto& expected = attachments[seen++];
      const bool refused = expected.size() > kLargest;
      CHECK(attachment.refused_bytes.has_value() == refused);
      if (refused) CHECK(*attachment.refused_bytes == expected.size());
      CHECK(std::ranges::equal(attachment.bytes, refused ? std::vector<std::byte>() : expected));
      return true;
    };
    while (at < stream.size()) {
      const auto space = reader.space();
      REQUIRE_FALSE(space.empty());
      const std::size_t count = std::min({step, space.size(), stream.size() - at});
      std::memcpy(space.data(), stream.data() + at, count);
      at += count;
      REQUIRE(reader.filled(count, on_frame).ok());
    }
    CHECK(seen == frames.size());
    CHECK_FALSE(reader.in_frame());
  }
}

TEST_CASE("an attachment in a buffer that had more bytes, or fewer, before is what was sent") {
  for (const std::size_t before : {std::size_t{7} << 20, std::size_t{100}}) {
    CAPTURE(before);
    std::vector<std::byte> used;
    used.reserve(7u << 20);
    used.resize(before, std::byte{9});
    const auto* const data = used.data();
    give_back_large_buffer(std::move(used));
    FrameReader reader(100, 8u << 20);
    const std::vector<std::byte> sent(6u << 20, std::byte{1});
    const std::uint32_t length = kAttachmentFlag | 0;
    const std::uint64_t attached = sent.size();
    std::vector<std::byte> stream(kFrameLengthBytes + kAttachmentLengthBytes);
    std::memcpy(stream.data(), &length, sizeof length);
    std::memcpy(stream.data() + kFrameLengthBytes, &attached, sizeof attached);
    stream.insert(stream.end(), sent.begin(), sent.end());
    std::vector<std::byte> seen;
    for (std::size_t at = 0; at < stream.size();) {
      const auto space = reader.space();
      const std::size_t count = std::min(space.size(), stream.size() - at);
      std::memcpy(space.data(), stream.data() + at, count);
      at += count;
      REQUIRE(reader
                  .filled(count,
                          [&](auto, Attachment&& attachment) {
                            seen = std::move(attachment.bytes);
                            return true;
                          })
                  .ok());
    }
    CHECK(seen == sent);
    CHECK(seen.data() == data);
  }
}

TEST_CASE("attachments where there are none, and before frames that are large themselves") {
  const auto announce = [](FrameReader& reader, std::uint32_t length, std::uint64_t attached) {
    std::memcpy(reader.space().data(), &length, sizeof length);
    std::memcpy(reader.space().data() + sizeof length, &attached, sizeof attached);
    return reader.filled(sizeof length + sizeof attached,
                         [](auto, const Attachment&) { return true; });
  };
  FrameReader none(1000), some(1u << 20, 1u << 20), huge(1u << 20, ~0ull);
  CHECK(announce(none, kAttachmentFlag | 8, 8).code() == Code::kProtocol);
  CHECK(announce(some, kAttachmentFlag | 40'000, 8).code() == Code::kProtocol);
  // What is announced takes no memory before it comes.
  CHECK(announce(huge, kAttachmentFlag, ~0ull).ok());
  CHECK(huge.in_frame());
  CHECK(huge.space().size() <= 512u << 10);
}

}  // namespace
}  // namespace troupe::net
