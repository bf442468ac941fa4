#include <algorithm>

#include "train/data/encode_samples.h"

namespace troupe::train {

Status encode_pretrain(std::span<const Conversation> texts, const Tokenizer& tokenizer,
                       const PretrainOptions& options, TokenDataset& out, EncodeReport& report) {
  const auto block = static_cast<std::size_t>(options.cutoff_len);
  const auto batch = static_cast<std::size_t>(options.preprocessing_batch_size);
  const bool add_bos = tokenizer.add_bos_token() && tokenizer.bos_id();
  const std::string bos = add_bos ? *tokenizer.token(*tokenizer.bos_id()) : std::string();
  std::vector<TokenId> ids;
  const auto encode = [&](const Conversation& text, const std::string& prefix) -> Status {
    const auto& content = text.messages.front().content;
    const auto before = ids.size();
    TROUPE_RETURN_IF_ERROR(tokenizer.encode_to(prefix + content + options.eos_token, false, ids));
    report.tokens += static_cast<std::int64_t>(ids.size() - before);
    report.text_bytes += static_cast<std::int64_t>(content.size());
    return {};
  };
  for (std::size_t begin = 0; begin < texts.size(); begin += batch) {
    const auto group = texts.subspan(begin, std::min(batch, texts.size() - begin));
    ids.clear();
    for (const auto& text : group) {
      TROUPE_RETURN_IF_ERROR(encode(text, options.packing ? std::string() : bos));
      if (options.packing) continue;
      const auto kept = std::min(ids.size(), block);
      report.tokens_dropped += static_cast<std::int64_t>(ids.size() - kept);
      out.append(std::span(ids).first(kept));
      ids.clear();
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
