// Records, and the memory of records that a node keeps for its actors.

#include <unistd.h>

#include <algorithm>
#include <string_view>

#include "actors/light_log.h"
#include "actors/saved_state.h"
#include "runtime/base/check.h"
#include "runtime/base/record.h"
#include "runtime/memory/record_memory.h"
#include "scheduler/node/output_ring.h"
#include "tests/fuzz/fuzz_input.h"

namespace troupe::tests {
namespace {

// --- records -------------------------------------------------------------------------------------

using Payloads = std::vector<FuzzBytes>;

std::pair<Payloads, RecordReader::End> read_records(std::span<const std::byte> bytes,
                                                    std::uint64_t base) {
  RecordReader reader(bytes, 0, base);
  Payloads payloads;
  std::uint64_t before = 0;
  while (const auto payload = reader.next()) {
    payloads.emplace_back(payload->begin(), payload->end());
    TROUPE_CHECK(reader.offset() == before + kRecordHeaderBytes + payload->size());
    before = reader.offset();
  }
  return {std::move(payloads), reader.end()};
}

void check_prefix(const Payloads& part, const Payloads& whole) {
  TROUPE_CHECK(part.size() <= whole.size() && std::equal(part.begin(), part.end(), whole.begin()));
}

// A base, a place and a bit, then pieces. As they are, they are read without harm. As records, what
// was written is read; any beginning of it gives a beginning of the records, with a torn end at
// most; where a bit flips, what is read is what was written before it, and the end is not torn.
void run_records(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint64_t base = in.u8() * 0x0123'4567'89ab'cdefULL;
  const std::size_t place = in.u8() | static_cast<std::size_t>(in.u8()) << 8;
  const std::uint8_t bit = in.u8() & 7;
  (void)read_records(in.rest(), base);
  Payloads written;
  FuzzBytes bytes;
  while (!in.empty()) {
    const auto piece = in.piece();
    if (piece.empty()) continue;
    written.emplace_back(piece.begin(), piece.end());
    const std::size_t at = bytes.size();
    bytes.resize(at + kRecordHeaderBytes + piece.size());
    write_record(bytes.data() + at, base + at,
                 {piece.first(piece.size() / 2), piece.subspan(piece.size() / 2)});
  }
  TROUPE_CHECK(read_records(bytes, base) == std::pair(written, RecordReader::End::kWhole));
  if (bytes.empty()) return;
  const std::size_t at = place % bytes.size();
  const auto [beginning, end] = read_records(std::span(bytes).first(at), base);
  check_prefix(beginning, written);
  TROUPE_CHECK(end == RecordReader::End::kTorn || end == RecordReader::End::kWhole);
  bytes[at] ^= static_cast<std::byte>(1u << bit);
  const auto [undamaged, reason] = read_records(bytes, base);
  check_prefix(undamaged, written);
  TROUPE_CHECK(undamaged == beginning);
  const bool in_last = undamaged.size() + 1 == written.size();
  TROUPE_CHECK(reason == (in_last ? RecordReader::End::kUnsound : RecordReader::End::kDamaged));
}

std::vector<FuzzBytes> record_seeds() {
  std::vector<FuzzBytes> seeds;
  for (const std::uint8_t base : {0, 1}) {
    for (const std::uint8_t place : {0, 13, 70}) {
      seeds.push_back(FuzzSeed()
                          .u8(base)
                          .u8(place)
                          .u8(0)
                          .u8(place)
                          .piece(fuzz_bytes("one"))
                          .piece(FuzzBytes(100))
                          .piece(fuzz_bytes("three"))
                          .take());
    }
  }
  return seeds;
}

// --- kept memory ---------------------------------------------------------------------------------

UniqueFd copy_of(int fd) { return UniqueFd(::dup(fd)); }

void check_saved_state(int fd) {
  auto segment = detail::SavedStateSegment::open(copy_of(fd));
  if (!segment.ok()) return;
  const auto read = segment->read();
  if (!read.ok() || !*read) return;
  const auto& state = **read;
  if (segment->fits(state)) {
    segment->write(state);
    TROUPE_CHECK(segment->read().value()->bytes == state.bytes &&
                 segment->read().value()->answered == state.answered);
  }
  detail::SavedState next{2, 7, FuzzBytes(3), FuzzBytes(4), true};
  if (state.answered.empty() || !segment->has_room(next)) return;
  segment->append(next);
  TROUPE_CHECK(segment->read().value()->version == 2 &&
               segment->read().value()->bytes == next.bytes);
  TROUPE_CHECK(segment->read().value()->answered.size() == state.answered.size() + 4);
}

void check_light_log(int fd) {
  detail::LightLog log([](int) { return Status(); });
  if (!log.open(copy_of(fd)).ok()) return;
  for (std::uint32_t number = 0; number < 4; ++number) (void)log.find(number);
  TROUPE_CHECK(log.saved(2, {1, 7, FuzzBytes(9)}).ok());
  TROUPE_CHECK(log.find(2).state->bytes == FuzzBytes(9));
}

void check_output(int fd) {
  auto ring = scheduler::OutputRing::adopt(copy_of(fd));
  if (!ring.ok()) return;
  const std::uint64_t lines = ring->line_count();
  ring->append("a line");
  TROUPE_CHECK(ring->line_count() == lines + 1);
  TROUPE_CHECK(ring->text().ends_with("a line\n"));
  TROUPE_CHECK(ring->text_of_process(7) == "a line\n");
}

struct KeptReader {
  RecordKind kind;
  std::size_t areas;
  void (*check)(int fd);
};
constexpr KeptReader kKeptReaders[] = {
    {{"TRPSAVE5", "saved state", ""}, 2, &check_saved_state},
    {{"TRPLIGH2", "log of light actors", ""}, 1, &check_light_log},
    {{"TRPOUT02", "output", ""}, 2, &check_output},
};
constexpr std::size_t kKeptAreaBytes = 8192;

// The first byte says whose memory it is and whether pieces, as records of it, begin areas anew.
void run_kept_memory(std::span<const std::byte> input) {
  FuzzInput in(input);
  const std::uint8_t control = in.u8();
  const KeptReader& reader = kKeptReaders[control % 0x80 % std::size(kKeptReaders)];
  auto memory =
      memory::RecordMemory::create(reader.kind, "fuzz", reader.areas, kKeptAreaBytes).value();
  const bool anew = reader.areas == 2 && (control & 0x80) != 0;
  while (!in.empty()) {
    const auto piece = in.piece();
    if (piece.empty() || !memory.fits(piece.size())) continue;
    if (anew) {
      memory.begin_area({piece});
    } else {
      (void)memory.append({piece});
    }
  }
  reader.check(memory.fd());
}

// The records of memory that its writer has filled.
FuzzBytes kept_seed(std::uint8_t control, int fd) {
  const KeptReader& reader = kKeptReaders[control % 0x80 % std::size(kKeptReaders)];
  FuzzSeed seed;
  seed.u8(control);
  const auto memory = memory::RecordMemory::open(reader.kind, reader.areas, copy_of(fd)).value();
  for (const auto record : memory.newest().value()) seed.piece(record);
  return seed.take();
}

std::vector<FuzzBytes> kept_seeds() {
  std::vector<FuzzBytes> seeds;
  const detail::SavedState state{1, 7, FuzzBytes(20, std::byte{3}), FuzzBytes(5)};
  auto saved = detail::SavedStateSegment::create(state).value();
  saved.write(state);
  saved.append({1, 7, FuzzBytes(21), FuzzBytes(6), true});
  seeds.push_back(kept_seed(0, saved.fd()));
  UniqueFd kept;
  detail::LightLog log([&](int fd) {
    kept = copy_of(fd);
    return Status();
  });
  TROUPE_CHECK(log.created(1, FuzzBytes(3)).ok() && log.saved(1, {1, 7, FuzzBytes(20)}).ok());
  TROUPE_CHECK(log.ended(2, Status(Code::kActorDied, "enough")).ok());
  seeds.push_back(kept_seed(1, kept.get()));
  auto ring = scheduler::OutputRing::create().value();
  ring.append("first");
  ring.begin_process();
  ring.append("");
  seeds.push_back(kept_seed(2, ring.fd()));
  seeds.push_back(kept_seed(0x80, saved.fd()));  // two areas begun anew
  return seeds;
}

}  // namespace

constinit const FuzzTarget kRecordsTarget{"records", "records in a file or in memory", 4096,
                                          &run_records, &record_seeds};
constinit const FuzzTarget kKeptMemoryTarget{
    "kept_memory", "saved state, the log of light actors and output that a node keeps", 8192,
    &run_kept_memory, &kept_seeds};

}  // namespace troupe::tests
