// What a stranger sends first: the handshake of either side, and frames.

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/base/check.h"
#include "runtime/base/limits.h"
#include "runtime/base/random.h"
#include "runtime/net/frame_reader.h"
#include "runtime/net/handshake.h"
#include "tests/fuzz/fuzz_input.h"

namespace troupe::tests {
namespace {

using net::ClientHandshake;
using net::Nonce;
using net::ServerHandshake;

// Pieces of a stream as the network may cut it: sizes from the input's first byte.
std::size_t fuzz_chunk(std::uint8_t control, std::size_t round) {
  constexpr std::array<std::size_t, 8> kSizes{1, 2, 3, 7, 16, 61, 1000, ~std::size_t{0}};
  return kSizes[(control + round) % kSizes.size()];
}

// --- frames --------------------------------------------------------------------------------------

constexpr std::size_t kFuzzFrameBytesMax = 1u << 20;

constexpr std::uint64_t kFuzzAttachmentBytesMax = 100'000;
// Of the control byte: frames may have attachments.
constexpr std::uint8_t kAttachments = 8;

struct FuzzFrame {
  FuzzBytes frame;
  FuzzBytes attachment;
  std::optional<std::uint64_t> refused_bytes;
  bool operator==(const FuzzFrame&) const = default;
};

// The same by the book: u32 length, bytes; or u32 length with the highest bit, u64 length of the
// attachment, bytes, attachment.
struct FramesByTheBook {
  std::vector<FuzzFrame> frames;
  bool refused = false;
};
FramesByTheBook frames_by_the_book(std::span<const std::byte> stream, bool attachments) {
  FramesByTheBook result;
  while (stream.size() >= 4) {
    std::uint32_t length = 0;
    std::memcpy(&length, stream.data(), 4);
    const bool attached = attachments && (length & net::kAttachmentFlag) != 0;
    if (attached) length &= ~net::kAttachmentFlag;
    if (length > (attached ? net::kAttachedFrameBytesMax : kFuzzFrameBytesMax)) {
      result.refused = true;
      break;
    }
    const std::size_t header = attached ? 12 : 4;
    if (stream.size() < header + length) break;
    std::uint64_t attachment = 0;
    if (attached) std::memcpy(&attachment, stream.data() + 4, 8);
    const auto frame = stream.subspan(header, length);
    stream = stream.subspan(header + length);
    if (stream.size() < attachment) break;
    FuzzFrame found{{frame.begin(), frame.end()}, {}, {}};
    const auto beside = stream.first(attachment);
    if (attachment > kFuzzAttachmentBytesMax) {
      found.refused_bytes = attachment;
    } else {
      found.attachment.assign(beside.begin(), beside.end());
    }
    result.frames.push_back(std::move(found));
    stream = stream.subspan(attachment);
  }
  return result;
}

void run_frames(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8();
  const bool attachments = (control & kAttachments) != 0;
  std::span<const std::byte> stream = in.rest();
  const FramesByTheBook expected = frames_by_the_book(stream, attachments);
  net::FrameReader reader(kFuzzFrameBytesMax, attachments ? kFuzzAttachmentBytesMax : 0);
  std::vector<FuzzFrame> frames;
  bool refused = false;
  for (std::size_t round = 0; !stream.empty() && !refused; ++round) {
    const auto space = reader.space();
    TROUPE_CHECK(!space.empty());
    const std::size_t count = std::min({stream.size(), space.size(), fuzz_chunk(control, round)});
    std::copy_n(stream.begin(), count, space.begin());
    stream = stream.subspan(count);
    const Status status = reader.filled(count, [&](std::span<const std::byte> frame,
                                                   net::Attachment&& attachment) {
      frames.push_back(
          {{frame.begin(), frame.end()}, std::move(attachment.bytes), attachment.refused_bytes});
      return true;
    });
    TROUPE_CHECK(status.ok() || status.code() == Code::kProtocol);
    refused = !status.ok();
  }
  TROUPE_CHECK(refused == expected.refused && frames == expected.frames);
}

std::vector<FuzzBytes> frame_seeds() {
  std::vector<FuzzBytes> seeds;
  for (std::uint8_t control = 0; control < 2 * kAttachments; ++control) {
    FuzzSeed seed;
    seed.u8(control);
    for (const std::uint32_t size : {0u, 1u, 5u, 300u, 40'000u}) {
      const FuzzBytes frame(size, std::byte{0x61});
      seed.rest(std::as_bytes(std::span(&size, 1))).rest(frame);
    }
    for (const std::uint64_t size : {0u, 3u, 50'000u, 110'000u}) {
      if ((control & kAttachments) == 0) break;
      const std::uint32_t length = net::kAttachmentFlag | 5u;
      const FuzzBytes frame(5 + size, std::byte{0x62});
      seed.rest(std::as_bytes(std::span(&length, 1)));
      seed.rest(std::as_bytes(std::span(&size, 1))).rest(frame);
    }
    seeds.push_back(seed.take());
  }
  return seeds;
}

// --- the handshake -------------------------------------------------------------------------------

const net::Token& fuzz_token() {
  static const net::Token token(32, std::byte{0x5a});
  return token;
}

constexpr std::uint64_t kNonceSeed = 1;

// The nonce that a side takes whose randomness has the seed kNonceSeed.
Nonce nonce_of_seed() {
  Nonce nonce;
  SeededRandom(kNonceSeed).fill(nonce);
  return nonce;
}

// Bit 0 of an input's control byte: the proof in the stream is replaced by the right one, so that
// what lies behind it is reached.
constexpr std::uint8_t kProves = 1;

template <std::size_t kSize>
void put(std::span<std::byte> stream, std::size_t at, const std::array<std::byte, kSize>& what) {
  std::copy(what.begin(), what.end(), stream.begin() + static_cast<std::ptrdiff_t>(at));
}

// Nobody gets in without the token, and nothing beyond the handshake is taken from the stream.
void run_server(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8();
  FuzzBytes stream(in.rest().begin(), in.rest().end());
  constexpr std::size_t kTargetAt = net::kHelloBytes + net::kProofBytes;
  const bool proves = (control & kProves) != 0 && stream.size() >= kTargetAt;
  if (proves) {
    const std::size_t length = static_cast<std::size_t>(stream[kTargetAt - 2]) |
                               static_cast<std::size_t>(stream[kTargetAt - 1]) << 8;
    const auto target =
        std::span(stream).subspan(kTargetAt).first(std::min(length, stream.size() - kTargetAt));
    Nonce client;
    std::copy_n(stream.begin() + net::kPreambleBytes, client.size(), client.begin());
    put(stream, net::kHelloBytes,
        net::handshake_mac(fuzz_token(), net::kClientLabel, client, nonce_of_seed(),
                           fuzz_text(target)));
  }
  SeededRandom random(kNonceSeed);
  ServerHandshake handshake(fuzz_token(), random);
  std::span<const std::byte> left = stream;
  std::size_t sent = 0;
  for (std::size_t round = 0; !left.empty(); ++round) {
    const auto space = handshake.space();
    TROUPE_CHECK(!space.empty());
    const std::size_t count =
        std::min({left.size(), space.size(), fuzz_chunk(control >> 1, round)});
    std::copy_n(left.begin(), count, space.begin());
    left = left.subspan(count);
    const auto outcome = handshake.filled(count);
    sent += outcome.reply.size();
    TROUPE_CHECK(sent <= 2 * net::kChallengeBytes + net::kAnswerMessageBytesMax);
    if (outcome.step == ServerHandshake::Step::kGoOn) continue;
    if (outcome.step == ServerHandshake::Step::kAuthenticated) {
      TROUPE_CHECK(proves);
      TROUPE_CHECK(handshake.target().size() <= limits::kHandshakeTargetBytesMax);
      TROUPE_CHECK(stream.size() - left.size() == kTargetAt + handshake.target().size());
    }
    return;
  }
}

// Done only where the other side proved that it has the token.
void run_client(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8();
  FuzzBytes stream(in.rest().begin(), in.rest().end());
  const bool proves = (control & kProves) != 0 && stream.size() >= net::kChallengeBytes;
  if (proves) {
    Nonce server;
    std::copy_n(stream.begin() + net::kPreambleBytes, server.size(), server.begin());
    put(stream, net::kHelloBytes,
        net::handshake_mac(fuzz_token(), net::kServerLabel, nonce_of_seed(), server, ""));
  }
  SeededRandom random(kNonceSeed);
  ClientHandshake handshake(fuzz_token(), "actor/1", "127.0.0.1:1", random);
  std::span<const std::byte> left = stream;
  for (std::size_t round = 0; !left.empty(); ++round) {
    const auto space = handshake.space();
    TROUPE_CHECK(!space.empty());
    const std::size_t count =
        std::min({left.size(), space.size(), fuzz_chunk(control >> 1, round)});
    std::copy_n(left.begin(), count, space.begin());
    left = left.subspan(count);
    const auto outcome = handshake.filled(count);
    if (!outcome.ok()) return;
    if (outcome->done) {
      TROUPE_CHECK(proves);
      return;
    }
  }
  TROUPE_CHECK(!handshake.closed().ok());
}

FuzzSeed preamble_seed(std::uint8_t control) {
  FuzzSeed seed;
  seed.u8(control).rest(net::kHandshakeMagic);
  const std::uint32_t version = net::kHandshakeVersion;
  return seed.rest(std::as_bytes(std::span(&version, 1)));
}

std::vector<FuzzBytes> server_seeds() {
  std::vector<FuzzBytes> seeds;
  const FuzzBytes nonce(net::kNonceBytes, std::byte{3});
  const FuzzBytes mac(net::kMacBytes, std::byte{4});
  for (const std::string_view target : {"head", "node", "", "actor/0123/comm/run/3", "a b\n"}) {
    for (const std::uint8_t control : {0, 1, 3, 13}) {
      FuzzSeed seed = preamble_seed(control);
      seed.rest(nonce).rest(mac).piece(bytes_of(target)).rest(bytes_of("next"));
      seeds.push_back(seed.take());
    }
  }
  return seeds;
}

std::vector<FuzzBytes> client_seeds() {
  std::vector<FuzzBytes> seeds;
  const FuzzBytes nonce(net::kNonceBytes, std::byte{3});
  const FuzzBytes mac(net::kMacBytes, std::byte{4});
  for (const Status& status : {Status(), Status(Code::kNotFound, "no such actor"),
                               Status(Code::kUnavailable, ""), Status(Code::kInternal, "x")}) {
    for (const std::uint8_t control : {0, 1, 3, 13}) {
      FuzzSeed seed = preamble_seed(control);
      seed.rest(nonce).rest(mac).rest(ServerHandshake::answer(status)).rest(bytes_of("next"));
      seeds.push_back(seed.take());
    }
  }
  return seeds;
}

}  // namespace

constinit const FuzzTarget kFramesTarget{"frames", "a stream of frames, cut anywhere", 1u << 18,
                                         &run_frames, &frame_seeds};
constinit const FuzzTarget kHandshakeServerTarget{
    "handshake_server", "what a stranger sends to a listener", 1024, &run_server, &server_seeds};
constinit const FuzzTarget kHandshakeClientTarget{"handshake_client",
                                                  "what a stranger answers to who connects", 1024,
                                                  &run_client, &client_seeds};

}  // namespace troupe::tests
