#include <algorithm>

#include "train/data/encode_samples.h"
#include "train/data/row_threads.h"

namespace troupe::train {

Status encode_pretrain(std::span<const Conversation> texts, const Tokenizer& tokenizer,
                       const PretrainOptions& options, TokenDataset& out, EncodeReport& report) {
  const auto block = static_cast<std::size_t>(options.cutoff_len);
  const auto batch = static_cast<std::size_t>(options.preprocessing_batch_size);
  const bool add_bos = tokenizer.add_bos_token() && tokenizer.bos_id();
  const std::string bos = add_bos ? *tokenizer.token(*tokenizer.bos_id()) : std::string();
  // What threads make of some batches of rows, before it is joined in order.
  struct Encoded {
    std::vector<TokenId> ids;
    Status status;
  };
  const std::size_t at_once = batch * std::max<std::size_t>(kRowsAtOnce / batch, 1);
  std::vector<Encoded> encoded;
  std::vector<TokenId> ids;
  const auto encode = [&](const Conversation& text) {
    Encoded made;
    if (!text.fault.empty()) return made;
    const auto& content = text.messages.front().content;
    made.status = tokenizer.encode_to(
        (options.packing ? std::string() : bos) + content + options.eos_token, false, made.ids);
    return made;
  };
  for (std::size_t begin = 0; begin < texts.size(); begin += batch) {
    if (begin % at_once == 0) {
      encoded.clear();
      encoded.resize(std::min(at_once, texts.size() - begin));
      for_each_row(encoded.size(), [&](std::size_t i) { encoded[i] = encode(texts[begin + i]); });
    }
    const auto group = texts.subspan(begin, std::min(batch, texts.size() - begin));
    ids.clear();
    for (std::size_t i = 0; i < group.size(); ++i) {
      Encoded& made = encoded[begin % at_once + i];
      TROUPE_RETURN_IF_ERROR(std::move(made.status));
      if (!group[i].fault.empty()) continue;
      report.tokens += std::ssize(made.ids);
      report.text_bytes += std::ssize(group[i].messages.front().content);
      if (options.packing) {
        ids.insert(ids.end(), made.ids.begin(), made.ids.end());
      } else {
        const auto kept = std::min(made.ids.size(), block);
        report.tokens_dropped += static_cast<std::int64_t>(made.ids.size() - kept);
        out.append(std::span(made.ids).first(kept));
      }
    }
    const std::size_t whole = ids.size() / block * block;
    for (std::size_t at = 0; at < whole; at += block) {
      if (add_bos) ids[at] = *tokenizer.bos_id();
      out.append(std::span(ids).subspan(at, block));
    }
    report.tokens_dropped += static_cast<std::int64_t>(ids.size() - whole);
    if (options.progress) {
      options.progress(static_cast<std::int64_t>(begin + group.size()),
                       static_cast<std::int64_t>(texts.size()));
    }
  }
  return {};
}

}  // namespace troupe::train
