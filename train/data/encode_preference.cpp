// Samples of the preference stages.
#include <algorithm>

#include "train/data/encode_samples.h"

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

}  // namespace troupe::train
