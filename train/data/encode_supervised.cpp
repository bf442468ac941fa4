#include <algorithm>
#include <map>
#include <optional>

#include "train/data/encode_samples.h"
#include "train/data/row_threads.h"

namespace troupe::train {
namespace {

struct Sample {
  std::vector<TokenId> ids;
  std::vector<std::int32_t> labels;
  std::int64_t whole_tokens = 0;  // before it was cut
  std::int64_t cut_tokens = 0;
};

void add(Sample& sample, std::span<const TokenId> ids, bool trained) {
  sample.ids.insert(sample.ids.end(), ids.begin(), ids.end());
  if (trained) {
    sample.labels.insert(sample.labels.end(), ids.begin(), ids.end());
  } else {
    sample.labels.insert(sample.labels.end(), ids.size(), kIgnoredLabel);
  }
}

Result<Sample> encode_sample(const Conversation& conversation, const ChatTemplate& chat,
                             const Tokenizer& tokenizer, const SupervisedOptions& options,
                             std::int64_t cutoff) {
  auto encode = options.encode;
  encode.mask_history = options.mask_history;
  auto turns = TROUPE_TRY(encode_conversation(chat, tokenizer, conversation, encode));
  if (options.mask_history) std::reverse(turns.begin(), turns.end());  // the last has priority
  std::int64_t total = chat.efficient_eos ? 1 : 0, whole = total;
  std::vector<Sample> parts;
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const auto &source = turns[i].source, &target = turns[i].target;
    whole += static_cast<std::int64_t>(source.size() + target.size());
    if (total >= cutoff) continue;
    const auto [source_length, target_length] =
        infer_lengths(static_cast<std::int64_t>(source.size()),
                      static_cast<std::int64_t>(target.size()), cutoff - total);
    total += source_length + target_length;
    auto& part = parts.emplace_back();
    add(part, std::span(source).first(static_cast<std::size_t>(source_length)),
        options.train_on_prompt);
    if (!options.train_on_prompt && chat.efficient_eos && i > 0 && source_length > 0) {
      part.labels.front() = *tokenizer.eos_id();
    }
    add(part, std::span(target).first(static_cast<std::size_t>(target_length)),
        i == 0 || !options.mask_history);
  }
  if (options.mask_history) std::reverse(parts.begin(), parts.end());
  Sample out;
  for (const auto& part : parts) {
    out.ids.insert(out.ids.end(), part.ids.begin(), part.ids.end());
    out.labels.insert(out.labels.end(), part.labels.begin(), part.labels.end());
  }
  if (chat.efficient_eos) {
    out.ids.push_back(*tokenizer.eos_id());
    out.labels.push_back(*tokenizer.eos_id());
  }
  out.whole_tokens = whole;
  out.cut_tokens = whole - total;
  return out;
}

// Packs samples of at most `capacity` tokens into samples of capacity + 1, the rest padding.
void pack(const std::vector<Sample>& samples, std::int64_t capacity, TokenDataset& out) {
  std::vector<std::int64_t> lengths;
  std::map<std::int64_t, std::vector<std::size_t>> by_length;  // equal lengths: last in, first out
  for (std::size_t i = 0; i < samples.size(); ++i) {
    lengths.push_back(static_cast<std::int64_t>(samples[i].ids.size()));
    by_length[lengths.back()].push_back(i);
  }
  for (const auto& group : greedy_knapsack(lengths, capacity)) {
    Sample packed;
    std::vector<std::int32_t> part_lengths;
    for (const auto length : group) {
      const auto& sample = samples[by_length[length].back()];
      by_length[length].pop_back();
      packed.ids.insert(packed.ids.end(), sample.ids.begin(), sample.ids.end());
      packed.labels.insert(packed.labels.end(), sample.labels.begin(), sample.labels.end());
      part_lengths.push_back(static_cast<std::int32_t>(length));
    }
    packed.ids.resize(static_cast<std::size_t>(capacity) + 1, out.pad_id());
    packed.labels.resize(static_cast<std::size_t>(capacity) + 1, kIgnoredLabel);
    out.append(packed.ids, packed.labels, part_lengths);
  }
}

}  // namespace

std::pair<std::int64_t, std::int64_t> infer_lengths(std::int64_t source, std::int64_t target,
                                                    std::int64_t budget) {
  std::int64_t target_max = budget;  // a short answer: cut the question
  if (target * 2 >= budget) {
    if (source * 2 < budget) {
      target_max = budget - source;  // a short question: cut the answer
    } else {
      // In this order, in double precision, as Python computes it.
      target_max = static_cast<std::int64_t>(
          static_cast<double>(budget) *
          (static_cast<double>(target) / static_cast<double>(source + target)));
    }
  }
  const auto target_kept = std::min(target_max, target);
  const auto source_kept = std::min(std::max<std::int64_t>(budget - target_kept, 0), source);
  return {source_kept, target_kept};
}

std::vector<std::vector<std::int64_t>> greedy_knapsack(const std::vector<std::int64_t>& lengths,
                                                       std::int64_t capacity) {
  std::map<std::int64_t, std::int64_t> left;  // how many there are of each length
  for (const auto length : lengths) ++left[length];
  std::vector<std::vector<std::int64_t>> groups;
  while (!left.empty()) {
    std::vector<std::int64_t> group;
    std::int64_t room = capacity;
    for (auto behind = left.upper_bound(room); behind != left.begin();
         behind = left.upper_bound(room)) {
      const auto taken = std::prev(behind);
      group.push_back(taken->first);
      room -= taken->first;
      if (--taken->second == 0) left.erase(taken);
    }
    if (group.empty()) break;  // a length above the capacity: excluded by the contract
    groups.push_back(std::move(group));
  }
  return groups;
}

Status encode_supervised(std::span<const Conversation> conversations, const ChatTemplate& chat,
                         const Tokenizer& tokenizer, const SupervisedOptions& options,
                         TokenDataset& out, EncodeReport& report) {
  // One place is kept for padding, so that a packed sample has cutoff_len tokens.
  const auto cutoff = options.cutoff_len - (options.packing ? 1 : 0);
  const auto batch = static_cast<std::size_t>(options.preprocessing_batch_size);
  std::vector<Sample> samples;
  std::vector<std::optional<Result<Sample>>> made;  // by threads, before it is joined in order
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    if (i % kRowsAtOnce == 0) {
      made.clear();
      made.resize(std::min(kRowsAtOnce, conversations.size() - i));
      for_each_row(made.size(), [&](std::size_t at) {
        if (!conversations[i + at].fault.empty()) return;
        made[at] = encode_sample(conversations[i + at], chat, tokenizer, options, cutoff);
      });
    }
    if (auto& encoded = made[i % kRowsAtOnce]) {
      if (!encoded->ok())
        return encoded->status().prefixed(
            fmt::format("sample {} (in the order that `troupe data` shows)",
                        options.rows_before + static_cast<std::int64_t>(i)));
      Sample& sample = **encoded;
      report.tokens += sample.whole_tokens;
      report.tokens_dropped += sample.cut_tokens;
      if (!options.packing) {
        out.append(sample.ids, sample.labels);
      } else if (static_cast<std::int64_t>(sample.ids.size()) > cutoff) {
        ++report.samples_too_long;
      } else {
        samples.push_back(std::move(sample));
      }
    }
    if ((i + 1) % batch != 0 && i + 1 != conversations.size()) continue;
    if (options.packing) pack(samples, cutoff, out);
    samples.clear();
    if (options.progress) {
      options.progress(static_cast<std::int64_t>(i + 1),
                       static_cast<std::int64_t>(conversations.size()));
    }
  }
  return {};
}

}  // namespace troupe::train
