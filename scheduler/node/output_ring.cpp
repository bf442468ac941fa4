#include "scheduler/node/output_ring.h"

#include <cstring>
#include <span>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/hash.h"
#include "runtime/process/output.h"

namespace troupe::scheduler {
namespace {

constexpr RecordKind kOutput{.magic = "TRPOUT02",
                             .name = "kept output of an actor",
                             .of_another_version = "its lines before are gone"};
constexpr std::size_t kAreas = 2;

}  // namespace

Result<OutputRing> OutputRing::create() {
  return OutputRing(TROUPE_TRY(
      memory::RecordMemory::create(kOutput, "troupe-output", kAreas, limits::kLogTailBytes)));
}

Result<OutputRing> OutputRing::adopt(UniqueFd fd) {
  OutputRing ring(TROUPE_TRY(memory::RecordMemory::open(kOutput, kAreas, std::move(fd))));
  TROUPE_RETURN_IF_ERROR(ring.records_.older().status());
  for (const auto record : TROUPE_TRY(ring.records_.newest())) {
    const auto kind = static_cast<Kind>(record.front());
    if (kind == Kind::kLine) ++ring.lines_;
    if (kind == Kind::kLinesBefore && record.size() == 1 + sizeof ring.lines_) {
      std::memcpy(&ring.lines_, record.data() + 1, sizeof ring.lines_);
    }
  }
  return ring;
}

void OutputRing::put(Kind kind, std::string_view text) {
  const auto front = std::as_bytes(std::span(&kind, 1));
  if (records_.append({front, bytes_of(text)})) return;
  constexpr Kind kBegin = Kind::kLinesBefore;
  records_.begin_area({std::as_bytes(std::span(&kBegin, 1)), std::as_bytes(std::span(&lines_, 1))});
  TROUPE_CHECK(records_.append({front, bytes_of(text)}).has_value());
}

void OutputRing::append(std::string_view line) {
  put(Kind::kLine, line.substr(0, limits::kLogLineBytesMax));
  ++lines_;
}

void OutputRing::begin_process() { put(Kind::kProcess, {}); }

std::string OutputRing::text_of(bool process_only, std::size_t bytes_max) const {
  std::vector<std::string_view> lines;
  for (const auto& records : {records_.older(), records_.newest()}) {
    if (!records.ok()) continue;
    for (const auto record : *records) {
      const auto kind = static_cast<Kind>(record.front());
      if (kind == Kind::kProcess && process_only) lines.clear();
      if (kind != Kind::kLine) continue;
      lines.emplace_back(reinterpret_cast<const char*>(record.data()) + 1, record.size() - 1);
    }
  }
  process::LogTail tail;
  for (const std::string_view line : lines) tail.append(line);
  return tail.text(bytes_max);
}

std::string OutputRing::text(std::size_t bytes_max) const { return text_of(false, bytes_max); }

std::string OutputRing::text_of_process(std::size_t bytes_max) const {
  return text_of(true, bytes_max);
}

}  // namespace troupe::scheduler
