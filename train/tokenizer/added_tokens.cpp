#include "train/tokenizer/added_tokens.h"

#include <algorithm>

namespace troupe::train {
namespace {

bool word_before(std::string_view text, std::size_t at) {
  if (at == 0) return false;
  std::size_t begin = previous_boundary(text, at);
  return is_word(next_code_point(text, begin));
}

bool word_behind(std::string_view text, std::size_t at) {
  return at < text.size() && is_word(next_code_point(text, at));
}

std::size_t skip_spaces_back(std::string_view text, std::size_t at) {
  while (at > 0) {
    const std::size_t begin = previous_boundary(text, at);
    std::size_t next = begin;
    if (!is_white_space(next_code_point(text, next))) break;
    at = begin;
  }
  return at;
}

std::size_t skip_spaces(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    std::size_t next = at;
    if (!is_white_space(next_code_point(text, next))) break;
    at = next;
  }
  return at;
}

}  // namespace

Result<AddedToken> AddedToken::from_json(const json::Value& value, std::size_t index) {
  const auto id = json::find_integer(value, "id");
  const auto content = json::find_string(value, "content");
  if (!id || *id < 0 || *id >= kVocabularySizeMax) {
    return error(Code::kInvalidArgument, "added_tokens[{}].id must be a number in [0, {})", index,
                 kVocabularySizeMax);
  }
  if (!content || content->empty()) {
    return error(Code::kInvalidArgument, "added_tokens[{}].content must be a string, not empty",
                 index);
  }
  const auto flag = [&](const char* key) { return json::find_bool(value, key).value_or(false); };
  AddedToken token;
  token.id = static_cast<TokenId>(*id);
  token.content = *content;
  token.single_word = flag("single_word");
  token.lstrip = flag("lstrip");
  token.rstrip = flag("rstrip");
  token.special = flag("special");
  token.normalized = json::find_bool(value, "normalized").value_or(!token.special);
  return token;
}

json::Value AddedToken::to_json() const {
  return {{"id", id},          {"content", content}, {"single_word", single_word},
          {"lstrip", lstrip},  {"rstrip", rstrip},   {"normalized", normalized},
          {"special", special}};
}

void TokenFinder::add(std::string_view content, const AddedToken& token) {
  if (content.empty()) return;
  const auto lead = static_cast<unsigned char>(content[0]);
  const std::size_t index = contents_.size();
  contents_.push_back({std::string(content), token});
  auto& list = by_first_byte_[lead];
  const auto behind = std::find_if(list.begin(), list.end(), [&](std::size_t other) {
    return contents_[other].content.size() < content.size();
  });
  list.insert(behind, index);
  first_[lead] = true;
}

const TokenFinder::Entry* TokenFinder::match_at(std::string_view text, std::size_t at) const {
  const auto lead = static_cast<unsigned char>(text[at]);
  if (!first_[lead]) return nullptr;
  for (const std::size_t index : by_first_byte_.at(lead)) {
    if (text.substr(at).starts_with(contents_[index].content)) return &contents_[index];
  }
  return nullptr;
}

// The first place from `at` on where an added token may begin.
std::size_t TokenFinder::next_lead(std::string_view text, std::size_t at) const {
  if (by_first_byte_.empty()) return text.size();
  if (by_first_byte_.size() == 1) {  // nearly always: all begin with '<'
    return std::min(text.size(), text.find(static_cast<char>(by_first_byte_.begin()->first), at));
  }
  while (at < text.size() && !first_[static_cast<unsigned char>(text[at])]) ++at;
  return at;
}

std::vector<TokenFinder::Part> TokenFinder::find(std::string_view text, bool split_special) const {
  std::vector<Part> parts;
  std::size_t covered = 0;
  for (std::size_t at = next_lead(text, 0); at < text.size(); at = next_lead(text, at)) {
    const auto* entry = match_at(text, at);
    if (!entry) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + entry->content.size();
    at = end;
    const auto& token = entry->token;
    if (split_special && token.special) continue;
    if (token.single_word && (word_before(text, begin) || word_behind(text, end))) continue;
    if (token.lstrip) begin = skip_spaces_back(text, begin);
    if (token.rstrip) end = skip_spaces(text, end);
    // Blanks that one before has taken may begin this one, as in Hugging Face's tokenizers.
    begin = std::min(std::max(begin, covered), end);
    if (begin > covered) parts.push_back({covered, begin, -1});
    parts.push_back({begin, end, token.id});
    covered = std::max(covered, end);
  }
  if (covered < text.size()) parts.push_back({covered, text.size(), -1});
  return parts;
}

}  // namespace troupe::train
