#include "train/tokenizer/sentence_piece.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>
#include <tuple>

#include "train/tokenizer/added_tokens.h"
#include "train/tokenizer/charsmap.h"

namespace troupe::train {
namespace {

constexpr const char* kMetaspace = "\xe2\x96\x81";

// One message in protobuf's wire format, field by field.
class WireFields {
 public:
  explicit WireFields(std::string_view message) : rest_(message) {}

  // False at the end and where the message is damaged.
  bool next() {
    if (rest_.empty() || damaged_) return false;
    const std::uint64_t tag = varint();
    number_ = tag >> 3;
    type_ = static_cast<int>(tag & 7);
    std::uint64_t size = 0;
    if (type_ == 0) {
      value_ = varint();
    } else {
      size = type_ == 1 ? 8 : type_ == 5 ? 4 : type_ == 2 ? varint() : rest_.size() + 1;
    }
    if (number_ == 0 || size > rest_.size()) damaged_ = true;
    if (damaged_) return false;
    bytes_ = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  bool damaged() const { return damaged_; }

  // Whether the field is this one, of the type that the value asks for.
  bool take(std::uint64_t number, std::string_view& out) { return take(number, 2, out, bytes_); }
  bool take(std::uint64_t number, std::string& out) { return take(number, 2, out, bytes_); }
  bool take(std::uint64_t number, bool& out) { return take(number, 0, out, value_ != 0); }
  bool take(std::uint64_t number, std::int64_t& out) {
    return take(number, 0, out, static_cast<std::int64_t>(value_));
  }
  bool take(std::uint64_t number, double& out) {
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < 4 && i < bytes_.size(); ++i)
      bits |= std::uint32_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    return take(number, 5, out, double{std::bit_cast<float>(bits)});
  }

 private:
  template <typename To, typename From>
  bool take(std::uint64_t number, int type, To& out, const From& value) {
    if (number_ != number || type_ != type) return false;
    out = To(value);
    return true;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
    damaged_ = true;
    return 0;
  }

  std::string_view rest_, bytes_;
  std::uint64_t number_ = 0, value_ = 0;
  int type_ = 0;
  bool damaged_ = false;
};

Status damaged(std::string_view part) {
  return error(Code::kInvalidArgument, "it is no SentencePiece model, or damaged ({})", part);
}

Status parse_piece(std::string_view message, SentencePieceModel& model) {
  auto& piece = model.pieces.emplace_back();
  std::int64_t type = 1;
  WireFields fields(message);
  while (fields.next())
    fields.take(1, piece.text) || fields.take(2, piece.score) || fields.take(3, type);
  const std::size_t index = model.pieces.size() - 1;
  if (fields.damaged()) return damaged(fmt::format("pieces[{}]", index));
  if (type < 1 || type > 6 || piece.text.empty() || !is_valid_utf8(piece.text) ||
      !std::isfinite(piece.score)) {
    return error(Code::kInvalidArgument, "pieces[{}] must be UTF-8 text with a score and a type",
                 index);
  }
  piece.type = static_cast<SentencePieceModel::Type>(type);
  return {};
}

using Type = SentencePieceModel::Type;

// Pairs of normal pieces that make another, the best one first.
json::Array merges_of(const SentencePieceModel& model, const std::vector<std::string>& tokens) {
  std::unordered_map<std::string_view, std::size_t> normal;
  for (std::size_t id = 0; id < tokens.size(); ++id)
    if (model.pieces[id].type == Type::kNormal) normal.emplace(tokens[id], id);
  std::vector<std::tuple<double, std::size_t, std::string_view, std::string_view>> ranked;
  for (const auto& [token, id] : normal) {
    for (std::size_t at = 0; at < token.size();) {
      next_code_point(token, at);
      const auto left = token.substr(0, at), right = token.substr(at);
      if (normal.contains(left) && normal.contains(right))
        ranked.emplace_back(-model.pieces[id].score, id, left, right);
    }
  }
  std::sort(ranked.begin(), ranked.end());
  json::Array merges;
  merges.reserve(ranked.size());
  for (const auto& [score, id, left, right] : ranked)
    merges.push_back(json::Array{json::Value(left), json::Value(right)});
  return merges;
}

// An expression that matches one of the texts, the longest of those that match.
std::string any_of(std::vector<std::string> texts) {
  std::stable_sort(texts.begin(), texts.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  std::string out;
  for (const auto& text : texts) {
    if (!out.empty()) out += '|';
    for (const char c : text) {
      if (std::string_view("\\.+*?()|[]{}^$-#").find(c) != std::string_view::npos) out += '\\';
      out += c;
    }
  }
  return out;
}

json::Object replace(const char* kind, const std::string& pattern, const char* content) {
  return {{"type", "Replace"}, {"pattern", {{kind, pattern}}}, {"content", content}};
}

json::Object sequence(const char* key, json::Array steps) {
  return {{"type", "Sequence"}, {key, std::move(steps)}};
}

// The name of a special token in a file of configuration: a string, or an object with `content`.
std::optional<std::string> named_token(const json::Value& value) {
  if (const auto* text = value.if_string()) return std::string(text->data(), text->size());
  return json::find_string(value, "content");
}

// Added tokens by id; those of the vocabulary beside new ones.
class AddedTokens {
 public:
  explicit AddedTokens(std::vector<std::string>& tokens) : tokens_(tokens) {
    for (std::size_t id = 0; id < tokens.size(); ++id)
      ids_.emplace(tokens[id], static_cast<TokenId>(id));
  }
  Status read_decoder(const json::Value& decoder) {
    if (!decoder.is_object()) return {};
    for (const auto& member : decoder.get_object()) {
      json::Object entry;
      if (member.value().is_object()) entry = member.value().get_object();
      const std::string key(member.key());
      const bool digits =
          !key.empty() && key.size() < 10 &&
          std::all_of(key.begin(), key.end(), [](char c) { return c >= '0' && c <= '9'; });
      entry["id"] = digits ? std::stoll(key) : -1;
      auto token = AddedToken::from_json(entry, added_.size());
      if (!token) return token.status().prefixed("added_tokens_decoder['" + key + "']");
      TROUPE_RETURN_IF_ERROR(put(std::move(*token)));
    }
    return {};
  }
  Status put(AddedToken token) {
    const auto id = static_cast<std::size_t>(token.id);
    const auto known = ids_.find(token.content);
    if (known != ids_.end() && known->second != token.id) {
      return error(Code::kInvalidArgument, "'{}' has the ids {} and {}", token.content,
                   known->second, token.id);
    }
    if (id < tokens_.size()) tokens_[id] = token.content;  // takes the place of a placeholder
    ids_.emplace(token.content, token.id);
    added_.insert_or_assign(token.id, std::move(token));
    return {};
  }
  // A special token under its id, or under a new one.
  void put_special(const std::string& content) {
    if (content.empty()) return;
    const auto last =
        added_.empty() ? std::size_t{0} : static_cast<std::size_t>(added_.rbegin()->first) + 1;
    const auto known = ids_.find(content);
    AddedToken token;
    token.id =
        known != ids_.end() ? known->second : static_cast<TokenId>(std::max(tokens_.size(), last));
    token.content = content;
    ids_.emplace(content, token.id);
    added_.emplace(token.id, std::move(token)).first->second.special = true;
  }
  std::optional<TokenId> id_of(const std::string& token) const {
    const auto at = ids_.find(token);
    return at == ids_.end() ? std::nullopt : std::optional(at->second);
  }
  json::Array to_json() const {
    json::Array out;
    for (const auto& [id, token] : added_) out.push_back(token.to_json());
    return out;
  }

 private:
  std::vector<std::string>& tokens_;
  std::map<std::string, TokenId> ids_;
  std::map<TokenId, AddedToken> added_;
};

json::Value model_json(const SentencePieceModel& model, const std::vector<std::string>& tokens,
                       bool whole_first) {
  if (model.kind == 1) {
    json::Array vocab;
    vocab.reserve(tokens.size());
    for (std::size_t id = 0; id < tokens.size(); ++id)
      vocab.push_back(json::Array{json::Value(tokens[id]), model.pieces[id].score});
    return {{"type", "Unigram"},
            {"unk_id", model.unk_id},
            {"vocab", std::move(vocab)},
            {"byte_fallback", model.byte_fallback}};
  }
  json::Object vocab;
  vocab.reserve(tokens.size());
  for (std::size_t id = 0; id < tokens.size(); ++id)
    vocab[tokens[id]] = static_cast<std::int64_t>(id);
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", tokens[static_cast<std::size_t>(model.unk_id)]},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", true},
          {"byte_fallback", model.byte_fallback},
          {"ignore_merges", whole_first},
          {"vocab", std::move(vocab)},
          {"merges", merges_of(model, tokens)}};
}

// `prefix`: a space goes in front of a text; of every part between added tokens where `legacy`.
json::Object normalizer_json(const SentencePieceModel& model, bool prefix, bool legacy) {
  json::Array steps;
  if (!model.charsmap.empty())
    steps.push_back(
        json::Object{{"type", "Precompiled"}, {"precompiled_charsmap", to_base64(model.charsmap)}});
  if (model.remove_extra_whitespaces) {
    steps.push_back(replace("Regex", "\\A +| +\\z", ""));
    steps.push_back(replace("Regex", " {2,}", " "));
  }
  if (prefix && legacy)
    steps.push_back(json::Object{{"type", "Prepend"},
                                 {"prepend", model.escape_whitespaces ? kMetaspace : " "}});
  if (model.escape_whitespaces) steps.push_back(replace("String", " ", kMetaspace));
  return sequence("normalizers", std::move(steps));
}

json::Value pre_tokenizer_json(const std::vector<std::string>& user_defined, bool prefix_first) {
  json::Array steps;
  if (prefix_first)
    steps.push_back(json::Object{{"type", "Metaspace"},
                                 {"replacement", kMetaspace},
                                 {"prepend_scheme", "first"},
                                 {"split", false}});
  if (!user_defined.empty())
    steps.push_back(json::Object{{"type", "Split"},
                                 {"pattern", {{"Regex", any_of(user_defined)}}},
                                 {"behavior", "Isolated"},
                                 {"invert", false}});
  if (steps.empty()) return nullptr;
  return sequence("pretokenizers", std::move(steps));
}

json::Object decoder_json(const SentencePieceModel& model, bool prefix) {
  json::Array steps{replace("String", kMetaspace, " ")};
  if (model.byte_fallback) steps.push_back(json::Object{{"type", "ByteFallback"}});
  steps.push_back(json::Object{{"type", "Fuse"}});
  if (prefix)
    steps.push_back(json::Object{{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return sequence("decoders", std::move(steps));
}

json::Value post_processor_json(const std::vector<std::pair<std::string, TokenId>>& before,
                                const std::vector<std::pair<std::string, TokenId>>& behind) {
  if (before.empty() && behind.empty()) return nullptr;
  json::Object names;
  const auto one = [&](const char* name, int type_id) {
    json::Array steps;
    const auto put = [&](const auto& tokens) {
      for (const auto& [token, id] : tokens) {
        steps.push_back(json::Object{{"SpecialToken", {{"id", token}, {"type_id", type_id}}}});
        names[token] = json::Object{{"id", token},
                                    {"ids", json::Array{json::Value(id)}},
                                    {"tokens", json::Array{json::Value(token)}}};
      }
    };
    put(before);
    steps.push_back(json::Object{{"Sequence", {{"id", name}, {"type_id", type_id}}}});
    put(behind);
    return steps;
  };
  json::Array single = one("A", 0), pair = single;
  for (auto& step : one("B", 1)) pair.push_back(std::move(step));
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(names)}};
}

}  // namespace

Result<SentencePieceModel> SentencePieceModel::parse(std::string_view bytes) {
  SentencePieceModel model;
  bool as_suffix = false;
  WireFields fields(bytes);
  while (fields.next()) {
    std::string_view message;
    if (fields.take(1, message)) {
      if (std::ssize(model.pieces) >= std::ptrdiff_t{kVocabularySizeMax})
        return error(Code::kInvalidArgument, "it has more than {} pieces", kVocabularySizeMax);
      TROUPE_RETURN_IF_ERROR(parse_piece(message, model));
    } else if (fields.take(2, message)) {
      WireFields spec(message);
      while (spec.next())
        spec.take(3, model.kind) || spec.take(24, as_suffix) ||
            spec.take(35, model.byte_fallback) || spec.take(40, model.unk_id) ||
            spec.take(41, model.bos_id) || spec.take(42, model.eos_id) ||
            spec.take(45, model.unk_piece) || spec.take(46, model.bos_piece) ||
            spec.take(47, model.eos_piece);
      if (spec.damaged()) return damaged("trainer_spec");
    } else if (fields.take(3, message)) {
      WireFields spec(message);
      while (spec.next())
        spec.take(2, model.charsmap) || spec.take(3, model.add_dummy_prefix) ||
            spec.take(4, model.remove_extra_whitespaces) || spec.take(5, model.escape_whitespaces);
      if (spec.damaged()) return damaged("normalizer_spec");
    }
  }
  if (fields.damaged()) return damaged("the file ends within a field");
  if (model.pieces.empty()) return damaged("it has no pieces");
  if (model.kind != 1 && model.kind != 2) {
    return error(Code::kUnsupported,
                 "model_type={} is not supported: use a SentencePiece model of type unigram or bpe",
                 model.kind == 3   ? "word"
                 : model.kind == 4 ? "char"
                                   : std::to_string(model.kind));
  }
  if (as_suffix) return error(Code::kUnsupported, "treat_whitespace_as_suffix is not supported");
  if (model.unk_id < 0 || model.unk_id >= std::ssize(model.pieces)) {
    return error(Code::kInvalidArgument, "unk_id={} is not one of the {} pieces", model.unk_id,
                 model.pieces.size());
  }
  return model;
}

Result<json::Value> tokenizer_json_of(const SentencePieceModel& model,
                                      SentencePieceCompanions& companions, bool add_bos) {
  auto& config = companions.config;
  const auto flag = [&](const char* key, bool otherwise) {
    return json::find_bool(config, key).value_or(otherwise);
  };
  std::vector<std::string> tokens;
  for (const auto& piece : model.pieces) tokens.push_back(piece.text);
  AddedTokens added(tokens);
  if (const auto* decoder = json::find(config, "added_tokens_decoder")) {
    TROUPE_RETURN_IF_ERROR(added.read_decoder(*decoder));
  } else if (companions.added.is_object()) {
    for (const auto& member : companions.added.get_object()) {
      TROUPE_RETURN_IF_ERROR(added.put(TROUPE_TRY(AddedToken::from_json(
          json::Object{{"id", member.value()}, {"content", member.key()}}, 0))));
    }
  }
  std::vector<std::string> user_defined;
  for (std::size_t id = 0; id < tokens.size(); ++id) {
    if (model.pieces[id].type == Type::kUserDefined) user_defined.push_back(tokens[id]);
    if (model.pieces[id].type == Type::kControl) added.put_special(tokens[id]);
  }
  std::set<std::string> unique(tokens.begin(), tokens.end());
  if (unique.size() != tokens.size())
    return error(Code::kInvalidArgument, "two of its {} pieces are the same", tokens.size());

  const std::tuple<const char*, std::int64_t, std::string> roles[] = {
      {"unk_token", model.unk_id, model.unk_piece},
      {"bos_token", model.bos_id, model.bos_piece},
      {"eos_token", model.eos_id, model.eos_piece},
      {"pad_token", -1, ""}};
  const auto role = [&](const char* key) -> std::string {
    for (const auto* file : {&config, &companions.special}) {
      const auto* value = json::find(*file, key);
      if (value) return named_token(*value).value_or("");  // null: there is none
    }
    return {};
  };
  for (const auto& [key, id, piece] : roles) {
    const bool named = json::find(config, key) || json::find(companions.special, key);
    if (!named && id >= 0 && id < std::ssize(tokens))
      config.get_object()[key] = tokens[static_cast<std::size_t>(id)];
    added.put_special(role(key));
  }
  const auto* more = json::find(config, "additional_special_tokens");
  if (more && more->is_array()) {
    for (const auto& token : more->get_array()) added.put_special(named_token(token).value_or(""));
  }
  std::vector<std::pair<std::string, TokenId>> before, behind;
  const auto wanted = [&](const char* key, auto& list) {
    if (const auto token = role(key); !token.empty()) list.emplace_back(token, *added.id_of(token));
  };
  if (flag("add_bos_token", add_bos)) wanted("bos_token", before);
  if (flag("add_eos_token", false)) wanted("eos_token", behind);

  const bool prefix = flag("add_prefix_space", model.add_dummy_prefix);
  const bool legacy = flag("legacy", true);
  return json::Value{{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added.to_json()},
                     {"normalizer", normalizer_json(model, prefix, legacy)},
                     {"pre_tokenizer", pre_tokenizer_json(user_defined, prefix && !legacy)},
                     {"post_processor", post_processor_json(before, behind)},
                     {"decoder", decoder_json(model, prefix)},
                     {"model", model_json(model, tokens, !user_defined.empty())}};
}

}  // namespace troupe::train
