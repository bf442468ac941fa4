#include "train/tokenizer/pre_tokenizer.h"

#include "train/tokenizer/normalizer.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

constexpr int kPreTokenizerNestingMax = 8;

// The code points of one replacement character, U+2581 by default.
constexpr const char* kMetaspaceDefault = "\xe2\x96\x81";

}  // namespace

Result<PreTokenizer> PreTokenizer::from_json(const json::Value* value) {
  PreTokenizer out;
  if (value && !value->is_null()) TROUPE_RETURN_IF_ERROR(out.add(*value, "pre_tokenizer", 0));
  return out;
}

Status PreTokenizer::add(const json::Value& value, const std::string& key, int depth) {
  const auto type = json::find_string(value, "type");
  if (!type) return error(Code::kInvalidArgument, "{}.type is missing or no string", key);
  if (*type == "Sequence") {
    const auto* list = json::find(value, "pretokenizers");
    if (!list || !list->is_array() || depth >= kPreTokenizerNestingMax) {
      return error(Code::kInvalidArgument, "{}.pretokenizers must be an array, at most {} deep",
                   key, kPreTokenizerNestingMax);
    }
    for (const auto& step : list->get_array()) {
      TROUPE_RETURN_IF_ERROR(add(step, key + ".pretokenizers", depth + 1));
    }
    return {};
  }
  if (byte_level_) {
    return error(Code::kUnsupported,
                 "{}: a {} after ByteLevel is not supported: ByteLevel must come last", key, *type);
  }
  if (*type == "ByteLevel") return add_byte_level(value);
  if (*type == "Split") return add_split(value, key);
  if (*type == "Metaspace") return add_metaspace(value, key);
  if (*type == "Digits") {
    const bool individual = json::find_bool(value, "individual_digits").value_or(false);
    add_class(is_numeric, individual ? Behavior::kIsolated : Behavior::kContiguous);
    return {};
  }
  if (*type == "Punctuation") {
    add_class(is_punctuation, TROUPE_TRY(behavior_of(value, key)));
    return {};
  }
  if (*type == "Whitespace" || *type == "WhitespaceSplit" || *type == "BertPreTokenizer") {
    add_class(is_white_space, Behavior::kRemoved);
    if (*type == "Whitespace") add_class(is_word, Behavior::kContiguous);  // \w+|[^\w\s]+
    if (*type == "BertPreTokenizer") add_class(is_punctuation, Behavior::kIsolated);
    return {};
  }
  return error(
      Code::kUnsupported,
      "{}.type={} is not supported: use a tokenizer whose pre_tokenizer is ByteLevel, "
      "Split, Digits, Punctuation, Whitespace, WhitespaceSplit, BertPreTokenizer, Metaspace "
      "or a Sequence of these",
      key, *type);
}

void PreTokenizer::add_class(bool (*is_match)(char32_t), Behavior behavior) {
  Step step;
  step.is_match = is_match;
  step.behavior = behavior;
  steps_.push_back(std::move(step));
}

Status PreTokenizer::add_byte_level(const json::Value& value) {
  byte_level_ = true;
  if (json::find_bool(value, "add_prefix_space").value_or(true)) {
    Step step;
    step.kind = Kind::kPrefixSpace;
    steps_.push_back(std::move(step));
  }
  if (json::find_bool(value, "use_regex").value_or(true)) {
    Step step;
    step.regex.push_back(TROUPE_TRY(Regex::compile(kGpt2Pattern)));
    step.piece_end = piece_end_of(kGpt2Pattern);
    steps_.push_back(std::move(step));
  }
  return {};
}

Status PreTokenizer::add_split(const json::Value& value, const std::string& key) {
  Step step;
  const auto* pattern = json::find(value, "pattern");
  if (pattern) {
    if (auto expression = json::find_string(*pattern, "Regex")) {
      auto regex = Regex::compile(*expression);
      if (!regex) return regex.status().prefixed(key + ".pattern");
      step.regex.push_back(std::move(*regex));
      step.piece_end = piece_end_of(*expression);
    } else {
      step.literal = json::find_string(*pattern, "String").value_or("");
    }
  }
  if (step.regex.empty() && step.literal.empty()) {
    return error(Code::kInvalidArgument, "{}.pattern must be {{\"String\": …}} or {{\"Regex\": …}}",
                 key);
  }
  step.behavior = TROUPE_TRY(behavior_of(value, key));
  step.invert = json::find_bool(value, "invert").value_or(false);
  steps_.push_back(std::move(step));
  return {};
}

Result<PreTokenizer::Behavior> PreTokenizer::behavior_of(const json::Value& value,
                                                         const std::string& key) {
  const auto behavior = json::find_string(value, "behavior").value_or("Isolated");
  const std::pair<const char*, Behavior> known[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  for (const auto& [name, kind] : known)
    if (behavior == name) return kind;
  return error(Code::kInvalidArgument,
               "{}.behavior='{}' is none of Removed, Isolated, MergedWithPrevious, "
               "MergedWithNext, Contiguous",
               key, behavior);
}

Status PreTokenizer::add_metaspace(const json::Value& value, const std::string& key) {
  Step step;
  step.kind = Kind::kMetaspace;
  step.behavior = Behavior::kMergedWithNext;
  step.literal = json::find_string(value, "replacement").value_or(kMetaspaceDefault);
  std::size_t at = 0;
  if (!step.literal.empty()) next_code_point(step.literal, at);
  if (step.literal.empty() || at != step.literal.size()) {
    return error(Code::kInvalidArgument, "{}.replacement must be one character", key);
  }
  const bool add_prefix = json::find_bool(value, "add_prefix_space").value_or(true);
  const auto scheme =
      json::find_string(value, "prepend_scheme").value_or(add_prefix ? "always" : "never");
  if (scheme != "always" && scheme != "first" && scheme != "never") {
    return error(Code::kInvalidArgument, "{}.prepend_scheme='{}' is none of always, first, never",
                 key, scheme);
  }
  step.prepend = scheme == "always"  ? Prepend::kAlways
                 : scheme == "first" ? Prepend::kFirst
                                     : Prepend::kNever;
  step.split = json::find_bool(value, "split").value_or(true);
  steps_.push_back(std::move(step));
  return {};
}

Status PreTokenizer::apply(Pieces& pieces, bool at_start, RegexScratch& scratch) const {
  for (const auto& step : steps_) {
    switch (step.kind) {
      case Kind::kSplit:
        TROUPE_RETURN_IF_ERROR(split(step, pieces, scratch));
        break;
      case Kind::kPrefixSpace:
        prefix_space(pieces);
        break;
      case Kind::kMetaspace:
        TROUPE_RETURN_IF_ERROR(metaspace(step, pieces, at_start, scratch));
        break;
    }
  }
  return {};
}

// Whether the step's pieces are its matches, given that these cover the text.
bool PreTokenizer::takes_matches(const Step& step) {
  return step.kind == Kind::kSplit && (step.behavior == Behavior::kIsolated ||
                                       (step.behavior == Behavior::kRemoved && step.invert));
}

PieceEnd PreTokenizer::only_splitter() const {
  return steps_.size() == 1 && takes_matches(steps_.front()) ? steps_.front().piece_end : nullptr;
}

Status PreTokenizer::split(const Step& step, Pieces& pieces, RegexScratch& scratch) {
  auto& out = pieces.next;
  auto& cuts = pieces.cuts;
  out.clear();
  const bool known = step.piece_end && takes_matches(step);
  for (std::size_t i = 0; i < pieces.ranges.size(); ++i) {
    const std::size_t begin = pieces.ranges[i].first;
    if (known) {
      const auto piece = pieces.piece(i);
      for (std::size_t at = 0; at < piece.size();) {
        const std::size_t next = step.piece_end(piece, at);
        out.emplace_back(begin + at, begin + next);
        at = next;
      }
      continue;
    }
    cuts.clear();
    TROUPE_RETURN_IF_ERROR(cut(step, pieces.piece(i), begin, scratch, cuts));
    join(step.behavior, cuts, out);
  }
  pieces.ranges.swap(out);
  return {};
}

// Covers the piece with ranges, each a match of the pattern or what lies between two matches.
Status PreTokenizer::cut(const Step& step, std::string_view piece, std::size_t offset,
                         RegexScratch& scratch, std::vector<std::pair<Pieces::Range, bool>>& cuts) {
  std::size_t covered = 0;
  const auto add_match = [&](std::size_t begin, std::size_t end) {
    if (begin > covered) cuts.push_back({{offset + covered, offset + begin}, step.invert});
    if (end > begin) cuts.push_back({{offset + begin, offset + end}, !step.invert});
    covered = end;
  };
  if (step.is_match) {
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t begin = at;
      if (step.is_match(next_code_point(piece, at))) add_match(begin, at);
    }
  } else if (step.piece_end) {
    for (std::size_t at = 0; at < piece.size();) {
      const std::size_t next = step.piece_end(piece, at);
      add_match(at, next);
      at = next;
    }
  } else if (step.regex.empty()) {
    for (std::size_t at = piece.find(step.literal); at != std::string_view::npos;
         at = piece.find(step.literal, at + step.literal.size())) {
      add_match(at, at + step.literal.size());
    }
  } else {
    for (std::size_t from = 0; from < piece.size();) {
      const auto match = TROUPE_TRY(step.regex.front().find(piece, from, scratch));
      if (!match) break;
      if (match->second > match->first) {
        add_match(std::max(match->first, covered), match->second);
        from = std::max(match->second, from);
      }
      if (match->second <= match->first || match->second < from) {  // empty: step over a character
        from = std::max(match->second, from);
        if (from < piece.size()) next_code_point(piece, from);
      }
    }
  }
  if (covered < piece.size()) {
    cuts.push_back({{offset + covered, offset + piece.size()}, step.invert});
  }
  return {};
}

void PreTokenizer::join(Behavior behavior, const std::vector<std::pair<Pieces::Range, bool>>& cuts,
                        std::vector<Pieces::Range>& out) {
  const std::size_t first = out.size();
  bool previous_matched = false;
  for (std::size_t i = 0; i < cuts.size(); ++i) {
    const auto& [range, matched] = cuts[i];
    const bool open = out.size() > first;  // there is a piece to extend
    bool extend = false;
    switch (behavior) {
      case Behavior::kRemoved:
        if (matched) continue;
        break;
      case Behavior::kIsolated:
        break;
      case Behavior::kMergedWithPrevious:
        extend = open && matched && !previous_matched;
        break;
      case Behavior::kMergedWithNext:
        extend = open && !matched && previous_matched;
        break;
      case Behavior::kContiguous:
        extend = open && matched == previous_matched;
        break;
    }
    if (extend) {
      out.back().second = range.second;
    } else {
      out.push_back(range);
    }
    previous_matched = matched;
  }
}

void PreTokenizer::prefix_space(Pieces& pieces) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.ranges.size());
  for (std::size_t i = 0; i < pieces.ranges.size(); ++i) {
    const auto piece = pieces.piece(i);
    const std::size_t begin = text.size();
    if (!piece.starts_with(' ')) text.push_back(' ');
    text.append(piece);
    pieces.ranges[i] = {begin, text.size()};
  }
  pieces.text = std::move(text);
}

Status PreTokenizer::metaspace(const Step& step, Pieces& pieces, bool at_start,
                               RegexScratch& scratch) {
  std::string text;
  text.reserve(pieces.text.size() + pieces.text.size() / 4);
  for (std::size_t i = 0; i < pieces.ranges.size(); ++i) {
    const std::string replaced = replace_all(pieces.piece(i), " ", step.literal);
    const std::size_t begin = text.size();
    const bool wanted =
        step.prepend == Prepend::kAlways || (step.prepend == Prepend::kFirst && at_start && i == 0);
    if (wanted && !replaced.starts_with(step.literal)) text += step.literal;
    text += replaced;
    pieces.ranges[i] = {begin, text.size()};
  }
  pieces.text = std::move(text);
  return step.split ? split(step, pieces, scratch) : Status();
}

}  // namespace troupe::train
