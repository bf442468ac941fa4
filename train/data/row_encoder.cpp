#include "train/data/row_encoder.h"

#include <algorithm>

#include "train/data/conversation_encoder.h"
#include "train/data/token_dataset.h"

namespace troupe::train {
namespace {

void add(TokenRow& row, const std::vector<TokenId>& ids, bool trained) {
  row.ids.insert(row.ids.end(), ids.begin(), ids.end());
  if (trained) {
    row.labels.insert(row.labels.end(), ids.begin(), ids.end());
  } else {
    row.labels.insert(row.labels.end(), ids.size(), kIgnoredLabel);
  }
}

// transformers' call of a tokenizer with truncation: special tokens stay, the text is cut.
Result<std::vector<TokenId>> encode_cut(const Tokenizer& tokenizer, const std::string& text,
                                        std::int64_t length_max) {
  auto ids = TROUPE_TRY(tokenizer.encode(text, true));
  if (std::ssize(ids) <= length_max) return ids;
  const auto plain = TROUPE_TRY(tokenizer.encode(text, false));
  const auto at = std::search(ids.begin(), ids.end(), plain.begin(), plain.end());
  const auto behind = at == ids.end() ? 0 : std::distance(at, ids.end()) - std::ssize(plain);
  const auto front = std::max<std::int64_t>(0, length_max - behind);
  ids.erase(ids.begin() + front, ids.end() - behind);
  return ids;
}

class Texts : public RowEncoder {
 protected:
  Texts(const Tokenizer& tokenizer, std::int64_t length_max)
      : tokenizer_(tokenizer), length_max_(length_max) {}

  // Empty texts have no ids, not even special ones.
  Result<std::vector<TokenId>> ids_of(const std::string& text, bool add_eos, bool strip_bos) const {
    if (text.empty()) return std::vector<TokenId>();
    auto ids = TROUPE_TRY(encode_cut(tokenizer_, text, length_max_));
    if (ids.empty()) return ids;
    const auto eos = tokenizer_.eos_id();
    if (add_eos && eos && ids.back() != *eos && std::ssize(ids) < length_max_) ids.push_back(*eos);
    if (strip_bos && tokenizer_.bos_id() && ids.front() == *tokenizer_.bos_id())
      ids.erase(ids.begin());
    return ids;
  }

  Tokenizer tokenizer_;
  std::int64_t length_max_;
};

struct AlpacaStyle {
  std::string_view name;
  // {i} the instruction, {n} the input.
  std::string_view system_begin, system_end, with_input, without_input;
};
constexpr AlpacaStyle kAlpacaStyles[] = {
    {"instruct", "", "\n\n", "### Instruction:\n{i}\n\n### Input:\n{n}\n\n### Response:\n",
     "### Instruction:\n{i}\n\n### Response:\n"},
    {"chat", "SYSTEM: ", "\n", "USER: {i}\n{n}\nASSISTANT:", "USER: {i}\nASSISTANT:"},
    {"chatml", "<|im_start|>system\n", "<|im_end|>\n",
     "<|im_start|>user\n{i}\n{n}<|im_end|>\n<|im_start|>assistant\n",
     "<|im_start|>user\n{i}<|im_end|>\n<|im_start|>assistant\n"},
    {"phi", "<|system|>\n", "<|end|>\n", "<|user|>\n{i}<|end|>{n}<|assistant|>",
     "<|user|>\n{i}<|end|>\n<|assistant|>\n"},
};
constexpr std::string_view kSystemWithInput =
    "Below is an instruction that describes a task, paired with an input that provides further "
    "context. Write a response that appropriately completes the request.";
constexpr std::string_view kSystemWithoutInput =
    "Below is an instruction that describes a task. Write a response that appropriately completes "
    "the request.";

class Alpaca final : public Texts {
 public:
  Alpaca(const Tokenizer& tokenizer, std::int64_t length_max, const AlpacaStyle& style,
         bool train_on_inputs)
      : Texts(tokenizer, length_max), style_(style), train_on_inputs_(train_on_inputs) {}

  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto instruction = TROUPE_TRY(text_column(row, "instruction"));
    const auto input = TROUPE_TRY(text_column(row, "input"));
    const auto output = TROUPE_TRY(text_column(row, "output"));
    if (!instruction || !output) {
      return error(Code::kInvalidArgument, "no text in the column '{}', which alpaca rows have",
                   instruction ? "output" : "instruction");
    }
    TokenRow sample;
    add(sample, TROUPE_TRY(ids_of(prompt(*instruction, input.value_or("")), false, false)),
        train_on_inputs_);
    add(sample, TROUPE_TRY(ids_of(*output, true, true)), true);
    out.push_back(std::move(sample));
    return {};
  }

 private:
  std::string prompt(const std::string& instruction, const std::string& input) const {
    std::string text(style_.system_begin);
    text += input.empty() ? kSystemWithoutInput : kSystemWithInput;
    text += style_.system_end;
    const auto turn = input.empty() ? style_.without_input : style_.with_input;
    for (std::size_t at = 0; at < turn.size(); ++at) {
      if (turn.substr(at).starts_with("{i}")) {
        text += instruction;
        at += 2;
      } else if (turn.substr(at).starts_with("{n}")) {
        text += input;
        at += 2;
      } else {
        text += turn[at];
      }
    }
    return text;
  }

  const AlpacaStyle& style_;
  bool train_on_inputs_;
};

class Completion final : public Texts {
 public:
  Completion(const Tokenizer& tokenizer, std::int64_t sequence_len, std::string field)
      : Texts(tokenizer, kSequencesMax * sequence_len),
        sequence_len_(static_cast<std::size_t>(sequence_len)),
        field_(std::move(field)) {}

  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto text = TROUPE_TRY(text_column(row, field_));
    if (!text)
      return error(Code::kInvalidArgument, "no text in the column '{}' (member field)", field_);
    const auto ids = TROUPE_TRY(ids_of(*text, true, false));
    for (std::size_t at = 0; at < ids.size(); at += sequence_len_) {
      const auto end = std::min(ids.size(), at + sequence_len_);
      TokenRow piece;
      add(piece,
          {ids.begin() + static_cast<std::ptrdiff_t>(at),
           ids.begin() + static_cast<std::ptrdiff_t>(end)},
          true);
      out.push_back(std::move(piece));
    }
    return {};
  }

 private:
  static constexpr std::int64_t kSequencesMax = 64;  // of a text, as in Axolotl
  std::size_t sequence_len_;
  std::string field_;
};

// Windows of sequence_len − 1 ids and an end token, each beginning with the end of the one before.
class Pretrain final : public RowEncoder {
 public:
  Pretrain(const Tokenizer& tokenizer, std::int64_t sequence_len, std::string field)
      : tokenizer_(tokenizer),
        window_(static_cast<std::size_t>(std::max<std::int64_t>(1, sequence_len - 1))),
        overlap_(std::min<std::size_t>(256, window_ / 2)),
        field_(std::move(field)) {}

  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto text = TROUPE_TRY(text_column(row, field_));
    if (!text)
      return error(Code::kInvalidArgument, "no text in the column '{}' (member text_column)",
                   field_);
    // Special tokens stand in every window.
    const auto plain = TROUPE_TRY(tokenizer_.encode(*text, false));
    const auto whole = TROUPE_TRY(tokenizer_.encode(*text, true));
    auto from = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
    if (from == whole.end()) from = whole.begin();
    const auto behind = from + std::min(std::ssize(plain), whole.end() - from);
    const std::size_t special = whole.size() - static_cast<std::size_t>(behind - from);
    const std::size_t room = window_ > special ? window_ - special : 1;
    const std::size_t overlap = std::min(overlap_, room - 1);
    for (std::size_t at = 0; at < plain.size(); at += room - overlap) {
      const auto end = std::min(plain.size(), at + room);
      std::vector<TokenId> window(whole.begin(), from);
      window.insert(window.end(), plain.begin() + static_cast<std::ptrdiff_t>(at),
                    plain.begin() + static_cast<std::ptrdiff_t>(end));
      window.insert(window.end(), behind, whole.end());
      if (tokenizer_.eos_id()) window.push_back(*tokenizer_.eos_id());
      TokenRow piece;
      add(piece, window, true);
      out.push_back(std::move(piece));
      if (end == plain.size()) break;
    }
    return {};
  }

 private:
  Tokenizer tokenizer_;
  std::size_t window_, overlap_;
  std::string field_;
};

class Segments final : public RowEncoder {
 public:
  Segments(const Tokenizer& tokenizer, bool train_on_inputs)
      : tokenizer_(tokenizer), train_on_inputs_(train_on_inputs) {}

  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto* segments = row.if_contains("segments");
    if (!segments || !segments->is_array())
      return error(Code::kInvalidArgument, "no list in the column 'segments'");
    TokenRow sample;
    for (const auto& segment : segments->get_array()) {
      const auto text = json::find_string(segment, "text");
      const auto* label = json::find(segment, "label");
      if (!text || !label || !label->is_bool()) {
        return error(Code::kInvalidArgument,
                     "a segment must have text and label (true or false), is {}",
                     json::write(segment).substr(0, 60));
      }
      add(sample, TROUPE_TRY(tokenizer_.encode(*text, false)),
          label->get_bool() || train_on_inputs_);
    }
    out.push_back(std::move(sample));
    return {};
  }

 private:
  Tokenizer tokenizer_;
  bool train_on_inputs_;
};

// What TRL makes of a column of texts.
class PlainText final : public RowEncoder {
 public:
  PlainText(const Tokenizer& tokenizer, std::string field)
      : tokenizer_(tokenizer), field_(std::move(field)) {
    if (tokenizer.eos_id()) eos_ = tokenizer.token(*tokenizer.eos_id()).value_or("");
  }
  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    auto text = TROUPE_TRY(text_column(row, field_));
    if (!text) return error(Code::kInvalidArgument, "no text in the column '{}'", field_);
    if (!text->ends_with(eos_)) *text += eos_;
    TokenRow sample;
    add(sample, TROUPE_TRY(tokenizer_.encode(*text, true)), true);
    out.push_back(std::move(sample));
    return {};
  }

 private:
  Tokenizer tokenizer_;
  std::string field_, eos_;
};

// A text, or messages: a list of them, or its JSON text.
class TextOrMessages final : public RowEncoder {
 public:
  // `messages`: why conversations cannot be read, where they cannot.
  TextOrMessages(const RowSource& source, const Tokenizer& tokenizer,
                 Result<std::unique_ptr<RowEncoder>> messages)
      : field_(source.field), text_(tokenizer, source.field), messages_(std::move(messages)) {}
  Status encode(const Record& row, std::vector<TokenRow>& out) const override {
    const auto* value = row.if_contains(field_);
    bool is_messages = value && value->is_array();
    if (value && value->is_string()) {
      const std::string text(value->get_string());
      is_messages = text.starts_with("[{") && json::parse(text, field_).ok();
    }
    if (!is_messages) return text_.encode(row, out);
    if (!messages_.ok()) return messages_.status();
    return (*messages_)->encode(row, out);
  }

 private:
  std::string field_;
  PlainText text_;
  Result<std::unique_ptr<RowEncoder>> messages_;
};

Result<std::unique_ptr<RowEncoder>> messages_encoder(const RowSource& source,
                                                     const Tokenizer& tokenizer,
                                                     std::vector<std::string>& notes) {
  if (source.chat_template == "none")
    return error(Code::kInvalidArgument,
                 "the column '{}' holds messages, and no chat_template says how they are written",
                 source.field);
  return make_conversation_encoder(source, tokenizer, notes);
}

}  // namespace

Result<std::optional<std::string>> text_column(const Record& row, const std::string& name) {
  const auto* value = row.if_contains(name);
  if (!value || value->is_null()) return std::optional<std::string>();
  if (!value->is_string()) {
    return error(Code::kInvalidArgument, "the column '{}' must be a string, is {}", name,
                 json::write(*value).substr(0, 60));
  }
  return std::optional(std::string(value->get_string()));
}

Result<std::unique_ptr<RowEncoder>> make_row_encoder(const RowSource& source,
                                                     const Tokenizer& tokenizer,
                                                     std::int64_t sequence_len,
                                                     std::vector<std::string>& notes) {
  using Encoder = std::unique_ptr<RowEncoder>;
  if (source.type == "completion")
    return Encoder(std::make_unique<Completion>(tokenizer, sequence_len, source.field));
  if (source.type == "pretrain")
    return Encoder(std::make_unique<Pretrain>(tokenizer, sequence_len, source.field));
  if (source.type == "input_output")
    return Encoder(std::make_unique<Segments>(tokenizer, source.train_on_inputs));
  if (source.type == "chat_template") return make_conversation_encoder(source, tokenizer, notes);
  if (source.type == "text") return Encoder(std::make_unique<PlainText>(tokenizer, source.field));
  if (source.type == "text_or_messages") {
    return Encoder(std::make_unique<TextOrMessages>(source, tokenizer,
                                                    messages_encoder(source, tokenizer, notes)));
  }
  const std::string style = source.type == "alpaca" ? "alpaca:instruct" : source.type;
  for (const auto& known : kAlpacaStyles) {
    if (style != "alpaca:" + std::string(known.name)) continue;
    return Encoder(
        std::make_unique<Alpaca>(tokenizer, sequence_len, known, source.train_on_inputs));
  }
  return error(Code::kInvalidArgument, "unhandled prompt tokenization strategy: {}. ", source.type);
}

}  // namespace troupe::train
