#include "train/trainer/surviving_log.h"

#include <atomic>
#include <cstring>

#include "runtime/base/check.h"

namespace troupe::train {
namespace {

constexpr std::uint64_t kLogMagic = 0x31474f4c50555254;  // "TRUPLOG1"
constexpr std::size_t kFirstBytes = 64u << 10;

}  // namespace

struct SurvivingLog::Header {
  std::uint64_t magic;
  std::atomic<std::uint64_t> used;  // bytes of whole lines
};

SurvivingLog::Header& SurvivingLog::header() const {
  return *reinterpret_cast<Header*>(segment_.data());
}

std::string_view SurvivingLog::text() const {
  const std::size_t room = segment_.size() - sizeof(Header);
  const std::size_t used = header().used.load(std::memory_order_acquire);
  return {reinterpret_cast<const char*>(segment_.data()) + sizeof(Header), std::min(used, room)};
}

Result<SurvivingLog> SurvivingLog::open(SurvivingMemory& memory, std::string name) {
  if (auto found = TROUPE_TRY(memory.take(name)); found && found->size() > sizeof(Header)) {
    SurvivingLog log(memory, std::move(name), std::move(*found));
    if (log.header().magic == kLogMagic) return log;
    name = std::move(log.name_);
  }
  auto segment = TROUPE_TRY(memory::Segment::create("troupe-log", kFirstBytes));
  SurvivingLog log(memory, std::move(name), std::move(segment));
  log.header().magic = kLogMagic;
  TROUPE_RETURN_IF_ERROR(memory.keep(log.name_, log.segment_));
  return log;
}

std::vector<std::string> SurvivingLog::lines() const {
  std::vector<std::string> lines;
  for (std::string_view rest = text(); !rest.empty();) {
    const auto end = rest.find('\n');
    if (end == std::string_view::npos) break;
    lines.emplace_back(rest.substr(0, end));
    rest.remove_prefix(end + 1);
  }
  return lines;
}

Status SurvivingLog::append(std::string_view line) {
  TROUPE_CHECK(line.find('\n') == std::string_view::npos);
  const std::string_view old = text();
  const std::size_t used = old.size();
  if (sizeof(Header) + used + line.size() + 1 > segment_.size()) {
    const std::size_t bytes = 2 * (segment_.size() + line.size());
    auto larger = TROUPE_TRY(memory::Segment::create("troupe-log", bytes));
    SurvivingLog next(*memory_, name_, std::move(larger));
    next.header().magic = kLogMagic;
    std::memcpy(next.segment_.data() + sizeof(Header), old.data(), used);
    next.header().used.store(used, std::memory_order_release);
    TROUPE_RETURN_IF_ERROR(memory_->keep(name_, next.segment_));
    segment_ = std::move(next.segment_);
  }
  std::byte* out = segment_.data() + sizeof(Header) + used;
  std::memcpy(out, line.data(), line.size());
  out[line.size()] = std::byte{'\n'};
  header().used.store(used + line.size() + 1, std::memory_order_release);
  return {};
}

void SurvivingLog::clear() { header().used.store(0, std::memory_order_release); }

}  // namespace troupe::train
