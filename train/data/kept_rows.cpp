#include "train/data/kept_rows.h"

#include <cstring>
#include <string_view>

#include "train/data/sampler.h"

namespace troupe::train {
namespace {

// What a row has, in its first byte.
constexpr std::uint8_t kFaulty = 1, kRejected = 2, kJudged = 4, kDesirable = 8;

void put_number(std::string& out, std::size_t number) {
  const auto bytes = static_cast<std::uint32_t>(number);
  out.append(reinterpret_cast<const char*>(&bytes), sizeof bytes);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size());
  out += text;
}

void put_message(std::string& out, const Message& message) {
  out.push_back(static_cast<char>(message.role));
  put_text(out, message.content);
}

// Reads what was put there in the same order.
struct KeptBytes {
  const char* at;

  std::uint32_t number() {
    std::uint32_t value = 0;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
  std::string text() {
    const std::uint32_t size = number();
    at += size;
    return std::string(at - size, size);
  }
  Message message() {
    const auto role = static_cast<Role>(*at++);
    return {role, text()};
  }
};

}  // namespace

Result<KeptRows> KeptRows::create(const std::string& folder) {
  auto bytes = TROUPE_TRY(ScratchFile::create(folder));
  return KeptRows(std::move(bytes), TROUPE_TRY(ScratchArray<std::uint64_t>::create(folder)));
}

Status KeptRows::add(const Conversation& row) {
  if (size() >= kPermutationSizeMax)
    return error(Code::kUnsupported, "more than {} rows", kPermutationSizeMax);
  written_.clear();
  written_.push_back(static_cast<char>(
      (row.fault.empty() ? 0 : kFaulty) | (row.rejected ? kRejected : 0) |
      (row.desirable ? kJudged : 0) | (row.desirable.value_or(false) ? kDesirable : 0)));
  put_number(written_, row.messages.size());
  for (const Message& message : row.messages) put_message(written_, message);
  put_text(written_, row.system);
  put_text(written_, row.tools);
  if (row.rejected) put_message(written_, *row.rejected);
  if (!row.fault.empty()) put_text(written_, row.fault);
  TROUPE_RETURN_IF_ERROR(bytes_.append(std::as_bytes(std::span(written_))));
  return ends_.append(bytes_.bytes().size());
}

std::size_t KeptRows::begin_of(std::uint32_t index) const {
  return index == 0 ? 0 : ends_.items()[index - 1];
}

bool KeptRows::is_sample(std::uint32_t index) const {
  return (static_cast<std::uint8_t>(bytes_.bytes()[begin_of(index)]) & kFaulty) == 0;
}

Conversation KeptRows::row(std::uint32_t index) const {
  KeptBytes reader{reinterpret_cast<const char*>(bytes_.bytes().data()) + begin_of(index)};
  const auto has = static_cast<std::uint8_t>(*reader.at++);
  Conversation out;
  const std::uint32_t messages = reader.number();
  out.messages.reserve(messages);
  for (std::uint32_t i = 0; i < messages; ++i) out.messages.push_back(reader.message());
  out.system = reader.text();
  out.tools = reader.text();
  if ((has & kRejected) != 0) out.rejected = reader.message();
  if ((has & kJudged) != 0) out.desirable = (has & kDesirable) != 0;
  if ((has & kFaulty) != 0) out.fault = reader.text();
  return out;
}

Result<OrderedRows> OrderedRows::create(const std::string& folder) {
  auto rows = TROUPE_TRY(KeptRows::create(folder));
  return OrderedRows{std::move(rows), TROUPE_TRY(RowOrder::create(folder))};
}

}  // namespace troupe::train
