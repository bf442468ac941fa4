#include "tools/commands/data_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "runtime/base/text.h"

namespace troupe::tools {
namespace {

// The labels of a sample; in pre-training those are its tokens, but for padding.
std::vector<std::int32_t> labels_of(const train::TokenDataset& data, std::int64_t sample) {
  const auto labels = data.labels(sample);
  std::vector<std::int32_t> out(labels.begin(), labels.end());
  if (data.kind() != train::TokenDataset::Kind::kPretrain) return out;
  for (const train::TokenId id : data.ids(sample))
    out.push_back(id == data.pad_id() ? train::kIgnoredLabel : id);
  return out;
}

std::int64_t trained_count(const std::vector<std::int32_t>& labels) {
  return std::ssize(labels) - std::ranges::count(labels, train::kIgnoredLabel);
}

// Text for a terminal: control characters, which would steer it, are written as \x1b.
std::string harmless(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if ((byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7f)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out;
}

}  // namespace

void print_sample(const train::TokenDataset& data, std::int64_t sample,
                  const train::Tokenizer& tokenizer, bool colours, std::ostream& out) {
  const auto labels = labels_of(data, sample);
  out << fmt::format("sample {}: {} tokens, {} trained on\n", sample, labels.size(),
                     trained_count(labels));
  const std::string begin = colours ? "\x1b[32m" : "⟦";
  const std::string end = colours ? "\x1b[0m" : "⟧";
  const auto ids = data.ids(sample);
  // Up to each place where the training begins or ends: what a token is as text may depend on those
  // before it, and be told with those behind it only (a byte of a character).
  std::string told;
  for (std::size_t i = 0, next = 0; i < ids.size(); i = next) {
    const bool trained = labels[i] != train::kIgnoredLabel;
    while (next < ids.size() && (labels[next] != train::kIgnoredLabel) == trained) ++next;
    const std::string text = tokenizer.decode(ids.first(next), false);
    const auto same = std::ranges::mismatch(told, text).in2;
    const std::string more = harmless(std::string(same, text.end()));
    out << (trained ? begin + more + end : more);
    told = text;
  }
  out << "\n\n";
}

json::Object json_of_sample(const train::TokenDataset& data, std::int64_t sample,
                            const train::Tokenizer& tokenizer) {
  json::Array ids, labels;
  for (const auto id : data.ids(sample)) ids.emplace_back(id);
  for (const auto label : labels_of(data, sample)) labels.emplace_back(label);
  return {{"input_ids", std::move(ids)},
          {"labels", std::move(labels)},
          {"text", tokenizer.decode(data.ids(sample), false)}};
}

void print_lengths(const train::TokenDataset& data, std::ostream& out) {
  constexpr std::int64_t kBarMax = 40;
  const auto kind = data.kind();
  const bool packed =
      kind == train::TokenDataset::Kind::kPacked || kind == train::TokenDataset::Kind::kNeatPacked;
  std::map<std::int64_t, std::int64_t> counts;  // by the largest length of the bin, a power of two
  std::int64_t trained = 0, most = 0, empty = 0, rows = 0, real = 0;
  const auto count = [&](std::int64_t length) {
    std::int64_t bin = 16;
    while (bin < length) bin *= 2;
    most = std::max(most, ++counts[bin]);
    ++rows;
    real += length;
  };
  for (std::int64_t i = 0; i < data.size(); ++i) {
    const std::int64_t labels = trained_count(labels_of(data, i));
    trained += labels;
    if (labels == 0) ++empty;
    // What is packed has one length; those of its rows tell more.
    if (packed) {
      for (const auto length : data.part_lengths(i)) count(length);
    } else {
      count(train::real_length(data, static_cast<std::uint32_t>(i)));
    }
  }
  if (empty > 0) {
    out << fmt::format("nothing is trained on in {}: cutoff_len cut it off, or it is empty\n",
                       count_of(empty, "sample"));
  }
  if (packed)
    out << fmt::format("{} lie in {}, of which {:.1f} % is padding\n", count_of(rows, "row"),
                       count_of(data.size(), "packed sample"),
                       100.0 * static_cast<double>(data.token_count() - real) /
                           static_cast<double>(std::max<std::int64_t>(data.token_count(), 1)));
  out << fmt::format("{} trained on; {} by their lengths in tokens:\n",
                     trained == 1 ? "1 token is" : fmt::format("{} tokens are", trained),
                     packed ? "rows" : "samples");
  for (const auto& [bin, samples] : counts) {
    const auto bar = std::max<std::int64_t>(samples * kBarMax / most, 1);
    out << fmt::format("{:>9} to {:<8} {:>9} {}\n", bin == 16 ? 1 : bin / 2 + 1, bin, samples,
                       std::string(static_cast<std::size_t>(bar), '#'));
  }
}

}  // namespace troupe::tools
