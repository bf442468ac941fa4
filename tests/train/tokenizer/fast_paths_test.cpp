// The fast paths through a tokenizer against slow ones that are plainly right: hand-written
// splitters against the expressions, merging and its words against merging whole pieces naively,
// normal forms of stretches against those of whole texts.

#include <doctest/doctest.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <memory>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/base/random.h"
#include "tests/support/test_data.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/regex.h"
#include "train/tokenizer/splitter.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

namespace troupe::train {
namespace {

using Cuts = std::vector<std::size_t>;

Cuts cuts_by_regex(const Regex& regex, const std::string& text, RegexScratch& scratch) {
  Cuts out;
  for (std::size_t at = 0; at < text.size();) {
    const auto match = regex.find(text, at, scratch).value();
    REQUIRE(match.has_value());
    REQUIRE(match->first == at);
    at = match->second;
    out.push_back(at);
  }
  return out;
}

Cuts cuts_by_hand(PieceEnd piece_end, const std::string& text) {
  Cuts out;
  for (std::size_t at = 0; at < text.size();) {
    at = piece_end(text, at);
    out.push_back(at);
  }
  return out;
}

const std::string_view kPatterns[] = {kGpt2Pattern, kLlama3Pattern, kQwen2Pattern};

// What makes the expressions choose: every kind of character, and the letters of contractions.
std::vector<std::string> awkward_characters() {
  return {"s",
          "S",
          "t",
          "r",
          "E",
          "e",
          "v",
          "l",
          "L",
          "m",
          "D",
          "x",
          "'",
          "\xc5\xbf",
          "K",
          "1",
          "23",
          "\u0663",
          "\u00b2",
          "\u00bd",
          " ",
          "  ",
          "\t",
          "\n",
          "\r",
          "\r\n",
          "\v",
          "\u0085",
          "\u00a0",
          "\u2003",
          "\u3000",
          "\u180e",
          "\u2028",
          ".",
          ",",
          "-",
          "\u2019",
          "\u00e9",
          "e\u0301",
          "\u0301",
          "\u6f22",
          "\u3042",
          "\u0644",
          "\U0001f600",
          "\u200d",
          "\ufe0f",
          "\u1100\u1161",
          std::string(1, '\0'),
          "\ufffd",
          "<",
          "\U0001d54f"};
}

std::string random_text(Random& random, const std::vector<std::string>& from, std::size_t most) {
  std::string out;
  for (auto left = random.below(most + 1); left > 0; --left) out += from[random.below(from.size())];
  return out;
}

TEST_CASE("splitters cut where the expressions match") {
  const auto characters = awkward_characters();
  RegexScratch scratch;
  for (const auto pattern : kPatterns) {
    const PieceEnd piece_end = piece_end_of(pattern);
    REQUIRE(bool(piece_end));
    const auto regex = Regex::compile(pattern).value();
    SeededRandom random(7);
    for (int round = 0; round < 5'000; ++round) {
      const auto text = random_text(random, characters, round % 50 == 0 ? 300 : 12);
      CAPTURE(text);
      REQUIRE(cuts_by_hand(piece_end, text) == cuts_by_regex(regex, text, scratch));
    }
    // All short texts over what contractions, spaces and lines consist of.
    const std::vector<std::string> few = {"s", "'", "l", "1", " ", "\n", "\t", ".", "\u6f22"};
    for (std::size_t number = 0; number < 9 * 9 * 9 * 9 * 9; ++number) {
      std::string text;
      for (auto left = number; left > 0; left /= 9) text += few[left % 9];
      REQUIRE(cuts_by_hand(piece_end, text) == cuts_by_regex(regex, text, scratch));
    }
  }
  CHECK_FALSE(bool(piece_end_of(R"(\p{L}+)")));
}

TEST_CASE("letters, numbers and spaces are those of the expressions") {
  RegexScratch scratch;
  const auto letter = Regex::compile(R"(\p{L})").value();
  const auto number = Regex::compile(R"(\p{N})").value();
  const auto space = Regex::compile(R"(\s)").value();
  const auto unassigned = Regex::compile(R"(\p{Cn})").value();
  int disagreements = 0;
  for (char32_t c = 0; c < 0x40000; ++c) {  // beyond, nothing of the kind is assigned
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    append_utf8(text, c);
    const auto matches = [&](const Regex& regex) {
      return regex.find(text, 0, scratch).value().has_value();
    };
    const bool same = matches(letter) == is_letter(c) && matches(number) == is_numeric(c) &&
                      matches(space) == is_white_space(c);
    // The libraries are of different years: one may know characters that the other does not.
    if (!same && !matches(unassigned)) ++disagreements;
  }
  CHECK(disagreements == 0);
}

TEST_CASE("texts from data sets split alike on both paths") {
  PosixFileSystem files;
  RegexScratch scratch;
  for (const char* name : {"wikitext2/valid.txt", "tinyshakespeare/input.txt"}) {
    const auto path = tests::test_data(name);
    if (!path) continue;
    const auto text = files.read(*path, 1 << 24).value();
    for (const auto pattern : kPatterns) {
      const auto regex = Regex::compile(pattern).value();
      // REQUIRE on vectors of this size would print them.
      const bool same =
          cuts_by_hand(piece_end_of(pattern), text) == cuts_by_regex(regex, text, scratch);
      CHECK(same);
    }
  }
}

// --- merging

using Merges = std::vector<std::pair<std::string, std::string>>;

// Symbols are texts; the lowest merge is applied to its leftmost pair, until none applies.
std::vector<std::string> merge_naively(std::vector<std::string> symbols, const Merges& merges) {
  std::map<std::pair<std::string, std::string>, std::size_t> numbers;
  for (std::size_t i = 0; i < merges.size(); ++i) numbers.emplace(merges[i], i);
  const auto number_at = [&](std::size_t at) {
    if (at + 1 >= symbols.size()) return merges.size();
    const auto found = numbers.find({symbols[at], symbols[at + 1]});
    return found == numbers.end() ? merges.size() : found->second;
  };
  std::vector<std::size_t> of_pair;  // that begins at each symbol
  for (std::size_t i = 0; i < symbols.size(); ++i) of_pair.push_back(number_at(i));
  for (;;) {
    const auto best = std::min_element(of_pair.begin(), of_pair.end());
    if (best == of_pair.end() || *best == merges.size()) return symbols;
    const auto where = static_cast<std::size_t>(best - of_pair.begin());
    symbols[where] += symbols[where + 1];
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    of_pair.erase(best);
    of_pair[where] = number_at(where);
    if (where > 0) of_pair[where - 1] = number_at(where - 1);
  }
}

std::vector<std::string> tokens_of(const Tokenizer& tokenizer, const std::vector<TokenId>& ids) {
  std::vector<std::string> out;
  for (const TokenId id : ids) out.push_back(*tokenizer.token(id));
  return out;
}

TEST_CASE("byte-level words of every length merge as the definition says") {
  SeededRandom random(11);
  const std::vector<std::string> letters = {"a", "b", "c", "ab", "ca"};
  std::string corpus;
  for (int i = 0; i < 400; ++i) corpus += random_text(random, letters, 9) + " ";
  BpeTrainerOptions options;
  options.vocab_size = 256 + 120;
  bool given = false;
  const auto trained = train_bpe(
                           [&](std::string& text) -> Result<bool> {
                             if (std::exchange(given, true)) return false;
                             text = corpus;
                             return true;
                           },
                           options)
                           .value();
  REQUIRE(trained.merges.size() > 60);
  const auto tokenizer = Tokenizer::from_text(tokenizer_json_of(trained), "", "", "t").value();
  // Beyond 15 bytes, 3 tokens, 32 symbols and 64 bytes other paths are taken; the second time, the
  // words are known.
  for (const std::size_t most : {3, 12, 30, 60, 200}) {
    for (int round = 0; round < 200; ++round) {
      const auto word = random_text(random, letters, most);
      std::vector<std::string> bytes;
      for (const char c : word) bytes.emplace_back(1, c);
      const auto expected = merge_naively(bytes, trained.merges);
      for (int time = 0; time < 2; ++time)
        REQUIRE(tokens_of(tokenizer, tokenizer.encode(word, false).value()) == expected);
    }
  }
}

TEST_CASE("more words than the table holds") {
  BpeTrainerOptions options;
  options.vocab_size = 256 + 300;
  SeededRandom random(3);
  std::vector<std::string> words;
  for (int i = 0; i < 40'000; ++i)
    words.push_back(fmt::format(" {:x}", random.below(std::uint64_t{1} << 40)));
  std::size_t next = 0;
  const auto trained = train_bpe(
                           [&](std::string& text) -> Result<bool> {
                             if (next == 2'000) return false;
                             text = words[next++];
                             return true;
                           },
                           options)
                           .value();
  const auto json = tokenizer_json_of(trained);
  const auto tokenizer = Tokenizer::from_text(json, "", "", "t").value();
  std::vector<std::vector<TokenId>> first;
  for (const auto& word : words) first.push_back(tokenizer.encode(word, false).value());
  for (std::size_t i = 0; i < words.size(); ++i) {
    REQUIRE(tokenizer.encode(words[i], false).value() == first[i]);
    if (i % 600 == 0) {
      const auto fresh = Tokenizer::from_text(json, "", "", "t").value();
      REQUIRE(fresh.encode(words[i], false).value() == first[i]);
    }
  }
}

// --- SentencePiece's kind

struct PieceModel {
  std::vector<std::string> characters;
  Merges merges;
  bool byte_fallback = true, fuse_unk = true, bytes = true;
  std::string unk = "<unk>";

  std::string to_json() const {
    json::Object vocab;
    const auto add = [&](const std::string& token) {
      if (!vocab.contains(token)) vocab[token] = static_cast<std::int64_t>(vocab.size());
    };
    add("<unk>");
    if (bytes) {
      for (int byte = 0; byte < 256; ++byte) add(fmt::format("<0x{:02X}>", byte));
    }
    for (const auto& character : characters) add(character);
    json::Array pairs;
    for (const auto& [left, right] : merges) {
      add(left + right);
      pairs.push_back(json::Array{json::Value(left), json::Value(right)});
    }
    json::Object model{{"type", "BPE"},
                       {"byte_fallback", byte_fallback},
                       {"fuse_unk", fuse_unk},
                       {"vocab", std::move(vocab)},
                       {"merges", std::move(pairs)}};
    if (!unk.empty()) model["unk_token"] = unk;
    return json::write(json::Object{{"model", std::move(model)}});
  }

  // The symbols that merging begins with.
  std::vector<std::string> symbols_of(const std::string& text) const {
    std::vector<std::string> out;
    bool open = false;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t begin = at;
      next_code_point(text, at);
      const auto character = text.substr(begin, at - begin);
      if (std::find(characters.begin(), characters.end(), character) != characters.end()) {
        out.push_back(character);
        open = false;
      } else if (byte_fallback && bytes) {
        for (const char c : character)
          out.push_back(fmt::format("<0x{:02X}>", static_cast<unsigned char>(c)));
        open = false;
      } else if (!unk.empty()) {
        if (!open || !fuse_unk) out.push_back(unk);
        open = true;
      }
    }
    return out;
  }
};

// Merges of random neighbours, each made of what is there before it.
PieceModel random_piece_model(Random& random, std::size_t count) {
  PieceModel model;
  model.characters = {"a", "b", "c", "\u2581", "\u00e9", "\u6f22", "."};
  std::vector<std::string> tokens = model.characters;
  while (model.merges.size() < count) {
    const auto left = tokens[random.below(tokens.size())];
    const auto right = tokens[random.below(tokens.size())];
    if (std::find(tokens.begin(), tokens.end(), left + right) != tokens.end()) continue;
    tokens.push_back(left + right);
    model.merges.emplace_back(left, right);
  }
  return model;
}

TEST_CASE("whole texts cut into words give the tokens of whole texts") {
  SeededRandom random(5);
  const std::vector<std::string> characters = {"a", "b", "c",      "\u2581", "\u00e9", "\u6f22",
                                               ".", "z", "\u00fc", "\u2581", "<",      "a"};
  for (int round = 0; round < 60; ++round) {
    auto model = random_piece_model(random, 2 + random.below(20));
    // With all bytes, without some way for what is unknown, and with none.
    model.byte_fallback = round % 4 != 1;
    model.bytes = round % 4 != 2;
    model.fuse_unk = round % 8 < 4;
    if (round % 3 == 0) model.unk = "";
    const auto tokenizer = Tokenizer::from_text(model.to_json(), "", "", "t").value();
    for (int text_number = 0; text_number < 60; ++text_number) {
      const auto text = random_text(random, characters, text_number % 10 == 0 ? 150 : 20);
      CAPTURE(text);
      const auto expected = merge_naively(model.symbols_of(text), model.merges);
      REQUIRE(tokens_of(tokenizer, tokenizer.encode(text, false).value()) == expected);
    }
  }
}

TEST_CASE("merges of byte tokens are not cut apart") {
  PieceModel model;
  model.characters = {"a"};
  model.merges = {{"<0x0A>", "<0x0A>"}, {"a", "<0x0A>"}};
  const auto tokenizer = Tokenizer::from_text(model.to_json(), "", "", "t").value();
  CHECK(tokens_of(tokenizer, tokenizer.encode("a\n\n\n", false).value()) ==
        std::vector<std::string>{"a", "<0x0A><0x0A>", "<0x0A>"});
  CHECK(tokens_of(tokenizer, tokenizer.encode("a\n", false).value()) ==
        std::vector<std::string>{"a<0x0A>"});
}

// --- the expression's own code beside the hand-written one, through whole tokenizers

// The tokenizer of `root` that cuts texts by `expression`; by none: as GPT-2's file does.
Tokenizer cut_by(json::Value root, const std::string& expression, bool digits) {
  json::Array steps;
  if (digits) steps.push_back({{"type", "Digits"}, {"individual_digits", true}});
  if (!expression.empty()) {
    steps.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", expression}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  steps.push_back(
      {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", expression.empty()}});
  root.get_object()["pre_tokenizer"] =
      json::Object{{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
  return Tokenizer::from_text(json::write(root), "", "", "t").value();
}

TEST_CASE("a tokenizer whose expression is not known gives the same ids") {
  SeededRandom random(13);
  const auto characters = awkward_characters();
  std::string corpus;
  for (int i = 0; i < 2'000; ++i) corpus += random_text(random, characters, 5);
  BpeTrainerOptions options;
  options.vocab_size = 256 + 400;
  bool given = false;
  const auto trained = train_bpe(
                           [&](std::string& text) -> Result<bool> {
                             if (std::exchange(given, true)) return false;
                             text = corpus;
                             return true;
                           },
                           options)
                           .value();
  REQUIRE(trained.merges.size() > 200);
  const auto root = json::parse(tokenizer_json_of(trained), "t").value();
  for (const std::string_view pattern : kPatterns) {
    for (const bool digits : {false, true}) {
      CAPTURE(std::string(pattern));
      const std::string known(pattern);
      const auto fast = cut_by(root, pattern == kGpt2Pattern && digits ? "" : known, digits);
      // The same expression in a group: matched by PCRE2.
      const auto slow = cut_by(root, "(?:" + known + ")", digits);
      for (int round = 0; round < 300; ++round) {
        auto sample = random_text(random, characters, 60);
        if (round % 3 == 0) sample.insert(sample.size() / 2, "\xff\xc3");  // not UTF-8
        CAPTURE(sample);
        REQUIRE(fast.encode(sample, false).value() == slow.encode(sample, false).value());
      }
    }
  }
}

// --- normal forms

TEST_CASE("stretches are normalised as whole texts are") {
  SeededRandom random(17);
  auto characters = awkward_characters();
  for (const char* more :
       {"\u0323", "\u0307", "\u00c5", "\u212b", "\u037e", "\u0344", "\u1100", "\u1161", "\u11a8",
        "\uac00", "\ufb01", "\u00aa", "\u01c4", "\u1e9b", "A", "o", "\u0338", "\u226e", "\u02b0"})
    characters.emplace_back(more);
  const std::pair<NormalizationForm, int> forms[] = {
      {NormalizationForm::kNfc, UTF8PROC_COMPOSE},
      {NormalizationForm::kNfd, UTF8PROC_DECOMPOSE},
      {NormalizationForm::kNfkc, UTF8PROC_COMPOSE | UTF8PROC_COMPAT},
      {NormalizationForm::kNfkd, UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT}};
  for (int round = 0; round < 2'000; ++round) {
    const auto text = random_text(random, characters, 15);
    CAPTURE(text);
    for (const auto& [form, options] : forms) {
      utf8proc_uint8_t* whole = nullptr;
      const auto length = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                       static_cast<utf8proc_ssize_t>(text.size()), &whole,
                                       static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
      const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(whole, &std::free);
      REQUIRE(length >= 0);
      REQUIRE(normalize(text, form).value() ==
              std::string(reinterpret_cast<const char*>(whole), static_cast<std::size_t>(length)));
    }
  }
}

}  // namespace
}  // namespace troupe::train
