#include "train/tokenizer/tokenizer.h"

#include <algorithm>

#include "train/tokenizer/tokenizer_core.h"

namespace troupe::train {

Status Tokenizer::Core::index() {
  std::size_t count = 0;
  for (const auto& [token, id] : vocabulary()) {
    count = std::max(count, static_cast<std::size_t>(id) + 1);
  }
  for (const auto& token : added) count = std::max(count, static_cast<std::size_t>(token.id) + 1);
  tokens.assign(count, {});
  special.assign(count, false);
  byte_counts.assign(count, 0);
  for (const auto& [token, id] : vocabulary()) {
    tokens[id] = token;
    byte_counts[id] = static_cast<std::uint32_t>(decoder.byte_count(token));
  }
  plain_finder = {};
  normalized_finder = {};
  RegexScratch scratch;
  for (const auto& token : added) {
    tokens[token.id] = token.content;
    special[token.id] = token.special;
    byte_counts[token.id] = token.special ? 0 : static_cast<std::uint32_t>(token.content.size());
    if (token.normalized) {
      normalized_finder.add(TROUPE_TRY(normalizer.apply(token.content, scratch)), token);
    } else {
      plain_finder.add(token.content, token);
    }
  }
  return {};
}

template <typename Model>
Status Tokenizer::encode_plain(const Model& model, std::string_view text,
                               std::vector<TokenId>& out) const {
  auto workspace = workspaces_->take();
  auto& scratch = workspace->scratch_of(model);
  const Core& core = *core_;
  const PieceEnd splitter = core.pre_tokenizer.only_splitter();
  const auto encode_part = [&](std::string_view part, bool at_start) -> Status {
    if (splitter) {
      for (std::size_t at = 0; at < part.size();) {
        const std::size_t end = splitter(part, at);
        model.encode_piece(part.substr(at, end - at), scratch, out);
        at = end;
      }
      return {};
    }
    auto& pieces = workspace->pieces;
    pieces.text.assign(part);
    pieces.ranges.assign(1, {0, part.size()});
    TROUPE_RETURN_IF_ERROR(core.pre_tokenizer.apply(pieces, at_start, workspace->regex));
    for (std::size_t i = 0; i < pieces.ranges.size(); ++i)
      model.encode_piece(pieces.piece(i), scratch, out);
    return {};
  };
  const auto encode_normalized = [&](std::string_view part, bool at_start) -> Status {
    if (core.normalized_finder.empty()) return encode_part(part, at_start);
    for (const auto& found : core.normalized_finder.find(part, split_special_tokens_)) {
      if (found.token >= 0) {
        out.push_back(found.token);
      } else {
        TROUPE_RETURN_IF_ERROR(encode_part(part.substr(found.begin, found.end - found.begin),
                                           at_start && found.begin == 0));
      }
    }
    return {};
  };
  const auto encode_all = [&]() -> Status {
    for (const auto& found : core.plain_finder.find(text, split_special_tokens_)) {
      const auto part = text.substr(found.begin, found.end - found.begin);
      if (found.token >= 0) {
        out.push_back(found.token);
      } else if (core.normalizer.empty()) {
        TROUPE_RETURN_IF_ERROR(encode_normalized(part, found.begin == 0));
      } else {
        bool front_dropped = false;
        const auto normal =
            TROUPE_TRY(core.normalizer.apply(part, workspace->regex, &front_dropped));
        TROUPE_RETURN_IF_ERROR(encode_normalized(normal, found.begin == 0 && !front_dropped));
      }
    }
    return {};
  };
  const Status status = encode_all();
  workspaces_->give_back(std::move(workspace));
  return status;
}

Status Tokenizer::encode_to(std::string_view text, bool add_special_tokens,
                            std::vector<TokenId>& out) const {
  if (add_special_tokens) out.insert(out.end(), core_->before.begin(), core_->before.end());
  std::string valid;
  if (!is_valid_utf8(text)) text = valid = to_valid_utf8(text);
  TROUPE_RETURN_IF_ERROR(
      std::visit([&](const auto& model) { return encode_plain(model, text, out); }, core_->model));
  if (add_special_tokens) out.insert(out.end(), core_->behind.begin(), core_->behind.end());
  return {};
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text,
                                               bool add_special_tokens) const {
  std::vector<TokenId> out;
  out.reserve(text.size() / 4 + 8);
  TROUPE_RETURN_IF_ERROR(encode_to(text, add_special_tokens, out));
  return out;
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const TokenId id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= core_->tokens.size()) continue;
    if (core_->tokens[id].empty() || (skip_special_tokens && core_->special[id])) continue;
    tokens.push_back(core_->tokens[id]);
  }
  return core_->decoder.decode(std::move(tokens));
}

std::int64_t Tokenizer::vocab_size() const {
  return static_cast<std::int64_t>(core_->tokens.size());
}

std::optional<TokenId> Tokenizer::token_id(std::string_view token) const {
  for (const auto& added : core_->added) {
    if (added.content == token) return added.id;
  }
  const auto at = core_->vocabulary().find(token);
  if (at == core_->vocabulary().end()) return std::nullopt;
  return at->second;
}

std::optional<std::string> Tokenizer::token(TokenId id) const {
  if (id < 0 || id >= vocab_size() || core_->tokens[id].empty()) return std::nullopt;
  return core_->tokens[id];
}

bool Tokenizer::is_special(TokenId id) const {
  return id >= 0 && id < vocab_size() && core_->special[id];
}

bool Tokenizer::is_byte(TokenId id) const {
  return id >= 0 && id < vocab_size() && core_->decoder.is_byte(core_->tokens[id]);
}

std::size_t Tokenizer::byte_count(TokenId id) const {
  return id >= 0 && id < vocab_size() ? core_->byte_counts[id] : 0;
}

std::size_t Tokenizer::byte_count(std::span<const TokenId> ids) const {
  std::size_t sum = 0;
  for (const TokenId id : ids) sum += byte_count(id);
  return sum;
}

bool Tokenizer::add_bos_token() const { return core_->add_bos_token; }

const std::optional<std::string>& Tokenizer::chat_template() const { return core_->chat_template; }

const std::optional<std::string>& Tokenizer::tool_use_template() const {
  return core_->tool_use_template;
}

Status Tokenizer::add_special_token(std::string_view token) {
  const auto id = token_id(token);
  if (!id) {
    return error(Code::kNotFound,
                 "the tokenizer has no token '{}': add it to the vocabulary (added_tokens of "
                 "tokenizer.json) and resize the model's embedding, or use another template",
                 token);
  }
  if (is_special(*id)) return {};
  return add_tokens({std::string(token)}, true).status();
}

Result<std::int64_t> Tokenizer::add_tokens(const std::vector<std::string>& tokens, bool special) {
  auto core = std::make_shared<Core>(*core_);
  std::int64_t next = vocab_size();
  for (const auto& token : tokens) {
    const auto known = std::find_if(core->added.begin(), core->added.end(),
                                    [&](const auto& added) { return added.content == token; });
    if (known != core->added.end()) {
      if (special) known->special = true;
      continue;
    }
    if (token.empty() || !is_valid_utf8(token) || next >= kVocabularySizeMax)
      return error(Code::kInvalidArgument,
                   "'{}' cannot be a token: empty, no UTF-8, or one too many", token);
    AddedToken added;
    const auto in_vocabulary = core->vocabulary().find(token);
    added.id = in_vocabulary != core->vocabulary().end() ? in_vocabulary->second
                                                         : static_cast<TokenId>(next++);
    added.content = token;
    added.special = special;
    added.normalized = !special;
    core->added.push_back(std::move(added));
  }
  core->added_as_read = false;
  TROUPE_RETURN_IF_ERROR(core->index());
  const std::int64_t count = next - vocab_size();
  core_ = std::move(core);
  return count;
}

void Tokenizer::set_chat_template(std::string jinja) {
  auto core = std::make_shared<Core>(*core_);
  core->chat_template = std::move(jinja);
  core->chat_template_is_file = true;
  core->tool_use_template.reset();
  core_ = std::move(core);
}

Status Tokenizer::set_eos(std::string_view token) {
  TROUPE_RETURN_IF_ERROR(add_special_token(token));
  eos_ = token_id(token);
  return {};
}

Status Tokenizer::set_pad(std::string_view token) {
  TROUPE_RETURN_IF_ERROR(add_special_token(token));
  pad_ = token_id(token);
  return {};
}

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

std::string IncrementalDecoder::decode_from(std::size_t begin, std::size_t end) const {
  return tokenizer_.decode(std::span(ids_).subspan(begin, end - begin), skip_special_tokens_);
}

std::string IncrementalDecoder::push(TokenId id) {
  ids_.push_back(id);
  // Both texts begin at the same token, so that a space stripped at the begin is stripped in both.
  const std::string before = decode_from(prefix_, read_);
  const std::string now = decode_from(prefix_, ids_.size());
  // A run of byte tokens is read as a whole: one that is no character spoils those before it.
  if (now.size() <= before.size() || now.ends_with("\xef\xbf\xbd") || tokenizer_.is_byte(id)) {
    return {};
  }
  prefix_ = read_;
  read_ = ids_.size();
  if (prefix_ > 64) {  // what lies before the prefix is never read again
    ids_.erase(ids_.begin(), ids_.begin() + static_cast<std::ptrdiff_t>(prefix_));
    read_ -= prefix_;
    prefix_ = 0;
  }
  return now.substr(before.size());
}

std::string IncrementalDecoder::finish() {
  const std::string before = decode_from(prefix_, read_);
  const std::string now = decode_from(prefix_, ids_.size());
  prefix_ = read_ = ids_.size();
  return now.size() > before.size() ? now.substr(before.size()) : std::string();
}

}  // namespace troupe::train
