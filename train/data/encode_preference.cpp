// Samples of the preference stages.
#include <algorithm>

#include "train/data/encode_samples.h"
#include "train/data/row_threads.h"

namespace troupe::train {
namespace {

// The conversation with `answer` instead of its last message, uncut.
Result<EncodedTurn> encode_answer(Conversation conversation, const Message& answer,
                                  const ChatTemplate& chat, const Tokenizer& tokenizer,
                                  const SupervisedOptions& options) {
  conversation.messages.back() = answer;
  auto turn = TROUPE_TRY(encode_last_answer(chat, tokenizer, conversation, options.encode));
  if (chat.efficient_eos) turn.target.push_back(*tokenizer.eos_id());
  return turn;
}

AnsweredIds cut(const std::vector<TokenId>& source, const std::vector<TokenId>& target,
                std::pair<std::int64_t, std::int64_t> lengths) {
  const auto [source_length, target_length] = lengths;
  AnsweredIds out;
  out.ids.assign(source.begin(), source.begin() + source_length);
  out.labels.assign(out.ids.size(), kIgnoredLabel);
  const auto end = target.begin() + std::min(target_length, std::ssize(target));
  out.ids.insert(out.ids.end(), target.begin(), end);
  out.labels.insert(out.labels.end(), target.begin(), end);
  return out;
}

bool has_labels(const AnsweredIds& answer) {
  return std::any_of(answer.labels.begin(), answer.labels.end(),
                     [](std::int32_t label) { return label != kIgnoredLabel; });
}

// The answer of the row in front of `row` in its batch, of the first row the last one's; rows that
// have none are passed over.
const Message& answer_in_front(std::span<const Conversation> rows, std::size_t row,
                               std::size_t batch) {
  const std::size_t begin = row / batch * batch;
  const std::size_t count = std::min(batch, rows.size() - begin);
  for (std::size_t back = 1; back < count; ++back) {
    const Conversation& other = rows[begin + (row - begin + count - back) % count];
    if (!other.messages.empty() && (other.messages.back().role == Role::kAssistant ||
                                    other.messages.back().role == Role::kFunction))
      return other.messages.back();
  }
  return rows[row].messages.back();
}

}  // namespace

Result<PairSample> encode_pair(const Conversation& conversation, const ChatTemplate& chat,
                               const Tokenizer& tokenizer, const SupervisedOptions& options) {
  const auto chosen = TROUPE_TRY(
      encode_answer(conversation, conversation.messages.back(), chat, tokenizer, options));
  const auto rejected =
      TROUPE_TRY(encode_answer(conversation, *conversation.rejected, chat, tokenizer, options));
  const auto lengths = infer_lengths(
      std::ssize(chosen.source), std::max(std::ssize(chosen.target), std::ssize(rejected.target)),
      options.cutoff_len);
  // The question of the chosen answer stands in front of both.
  return PairSample{cut(chosen.source, chosen.target, lengths),
                    cut(chosen.source, rejected.target, lengths)};
}

Result<FeedbackSample> encode_feedback(const Conversation& conversation, const Message& kl_answer,
                                       const ChatTemplate& chat, const Tokenizer& tokenizer,
                                       const SupervisedOptions& options) {
  const auto sample = [&](const Message& answer) -> Result<AnsweredIds> {
    const auto turn = TROUPE_TRY(encode_answer(conversation, answer, chat, tokenizer, options));
    return cut(turn.source, turn.target,
               infer_lengths(std::ssize(turn.source), std::ssize(turn.target), options.cutoff_len));
  };
  FeedbackSample out;
  out.answer = TROUPE_TRY(sample(conversation.messages.back()));
  out.kl = TROUPE_TRY(sample(kl_answer));
  out.desirable = conversation.desirable.value_or(false);
  return out;
}

Status encode_preferences(std::span<const Conversation> conversations, const ChatTemplate& chat,
                          const Tokenizer& tokenizer, const SupervisedOptions& options,
                          TokenDataset& out, EncodeReport& report) {
  const bool pairs = out.kind() == TokenDataset::Kind::kPairs;
  const auto batch = static_cast<std::size_t>(options.preprocessing_batch_size);
  struct Made {
    AnsweredIds first, second;
    bool desirable = false;
    Status status;
  };
  std::vector<Made> made;
  const auto encode = [&](std::size_t row, Made& to) -> Status {
    const Conversation& conversation = conversations[row];
    if (pairs) {
      PairSample sample = TROUPE_TRY(encode_pair(conversation, chat, tokenizer, options));
      to.first = std::move(sample.chosen), to.second = std::move(sample.rejected);
      return {};
    }
    FeedbackSample sample = TROUPE_TRY(encode_feedback(
        conversation, answer_in_front(conversations, row, batch), chat, tokenizer, options));
    to.first = std::move(sample.answer), to.second = std::move(sample.kl);
    to.desirable = sample.desirable;
    return {};
  };
  for (std::size_t i = 0; i < conversations.size(); ++i) {
    if (i % kRowsAtOnce == 0) {
      made.clear();
      made.resize(std::min(kRowsAtOnce, conversations.size() - i));
      for_each_row(made.size(), [&](std::size_t at) {
        if (conversations[i + at].fault.empty()) made[at].status = encode(i + at, made[at]);
      });
    }
    if (options.progress && ((i + 1) % batch == 0 || i + 1 == conversations.size()))
      options.progress(static_cast<std::int64_t>(i + 1),
                       static_cast<std::int64_t>(conversations.size()));
    if (!conversations[i].fault.empty()) continue;
    Made& row = made[i % kRowsAtOnce];
    if (!row.status.ok()) return row.status.prefixed(fmt::format("sample {}", i));
    report.tokens += std::ssize(row.first.ids) + (pairs ? std::ssize(row.second.ids) : 0);
    // The first token of a sequence is predicted by none, and its label does not count.
    for (AnsweredIds* answer : {&row.first, &row.second})
      if (!answer->labels.empty()) answer->labels.front() = kIgnoredLabel;
    if (!has_labels(row.first) || !has_labels(row.second)) {
      ++report.records_dropped;
      continue;
    }
    std::vector<std::int32_t> parts{static_cast<std::int32_t>(row.first.ids.size()),
                                    static_cast<std::int32_t>(row.second.ids.size())};
    if (row.desirable) parts.push_back(0);
    AnsweredIds& joined = row.first;
    joined.ids.insert(joined.ids.end(), row.second.ids.begin(), row.second.ids.end());
    joined.labels.insert(joined.labels.end(), row.second.labels.begin(), row.second.labels.end());
    out.append(joined.ids, joined.labels, parts);
  }
  return {};
}

}  // namespace troupe::train
