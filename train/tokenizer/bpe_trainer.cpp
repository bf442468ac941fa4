#include "train/tokenizer/bpe_trainer.h"

#include <algorithm>
#include <queue>
#include <unordered_map>

#include "runtime/base/json.h"
#include "train/tokenizer/added_tokens.h"
#include "train/tokenizer/pre_tokenizer.h"

namespace troupe::train {
namespace {

constexpr std::int64_t kProgressEvery = 256;

using Pair = std::uint64_t;  // left id << 32 | right id
Pair pair_of(TokenId left, TokenId right) {
  return static_cast<Pair>(static_cast<std::uint32_t>(left)) << 32 |
         static_cast<std::uint32_t>(right);
}
TokenId left_of(Pair pair) { return static_cast<TokenId>(pair >> 32); }
TokenId right_of(Pair pair) { return static_cast<TokenId>(pair & 0xffffffff); }

using WordCounts = std::unordered_map<std::string, std::uint64_t, StringHash, std::equal_to<>>;

Status check(const BpeTrainerOptions& options) {
  const auto special_count = static_cast<std::int64_t>(options.special_tokens.size());
  if (options.vocab_size < 256 + special_count || options.vocab_size > kVocabularySizeMax) {
    return error(Code::kInvalidArgument,
                 "vocab_size={}: must be at least {} (256 bytes and {} special tokens) and at most "
                 "{}",
                 options.vocab_size, 256 + special_count, special_count, kVocabularySizeMax);
  }
  for (std::size_t i = 0; i < options.special_tokens.size(); ++i) {
    const auto& token = options.special_tokens[i];
    const auto end = options.special_tokens.begin() + static_cast<std::ptrdiff_t>(i);
    // A single character could be the name of a byte, which has an id already.
    std::size_t first = 0;
    if (!token.empty() && is_valid_utf8(token)) next_code_point(token, first);
    if (token.empty() || !is_valid_utf8(token) || first == token.size() ||
        std::find(options.special_tokens.begin(), end, token) != end) {
      return error(
          Code::kInvalidArgument,
          "special token {} ('{}') must be UTF-8 of at least two characters and stand once", i,
          to_valid_utf8(token));
    }
  }
  for (const auto* role :
       {&options.bos_token, &options.eos_token, &options.pad_token, &options.unk_token}) {
    if (!role->empty() && std::find(options.special_tokens.begin(), options.special_tokens.end(),
                                    *role) == options.special_tokens.end()) {
      return error(Code::kInvalidArgument, "'{}' must be one of the special tokens", *role);
    }
  }
  return {};
}

// Counts the words of every text: what lies between special tokens, cut by GPT-2's expression.
Result<WordCounts> count_words(const TextSource& next_text, const BpeTrainerOptions& options,
                               std::uint64_t& bytes) {
  TokenFinder finder;
  for (const auto& token : options.special_tokens) {
    AddedToken added;
    added.content = token;
    finder.add(token, added);
  }
  const json::Value setting = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const auto pre_tokenizer = TROUPE_TRY(PreTokenizer::from_json(&setting));
  RegexScratch scratch;
  Pieces pieces;
  WordCounts counts;
  for (std::string text; TROUPE_TRY(next_text(text));) {
    bytes += text.size();
    if (!is_valid_utf8(text)) text = to_valid_utf8(text);
    for (const auto& part : finder.find(text)) {
      if (part.token >= 0) continue;
      pieces.text.assign(text, part.begin, part.end - part.begin);
      pieces.ranges.assign(1, {0, pieces.text.size()});
      TROUPE_RETURN_IF_ERROR(pre_tokenizer.apply(pieces, true, scratch));
      for (std::size_t i = 0; i < pieces.ranges.size(); ++i) {
        const auto piece = pieces.piece(i);
        const auto at = counts.find(piece);
        if (at == counts.end()) {
          counts.emplace(piece, 1);
        } else {
          ++at->second;
        }
      }
    }
  }
  return counts;
}

// The words as sequences of ids (bytes have the ids 0…255 here), with the count of every pair kept
// up to date while pairs are merged, and the words it may occur in.
class Merger {
 public:
  explicit Merger(const WordCounts& counts) {
    for (int byte = 0; byte < 256; ++byte)
      bytes_.push_back(std::string(1, static_cast<char>(byte)));
    words_.reserve(counts.size());
    for (const auto& [word, count] : counts) {
      Word entry{{}, count};
      for (const char c : word) entry.ids.push_back(static_cast<unsigned char>(c));
      const auto index = static_cast<std::uint32_t>(words_.size());
      for (std::size_t i = 0; i + 1 < entry.ids.size(); ++i) {
        add(pair_of(entry.ids[i], entry.ids[i + 1]), static_cast<std::int64_t>(count), index);
      }
      words_.push_back(std::move(entry));
    }
    for (const auto& [pair, info] : pairs_) push(pair, info.count);
  }

  // The pair to merge next with its count, or 0 where none is left.
  std::pair<Pair, std::uint64_t> best() {
    while (!heap_.empty()) {
      const Candidate top = heap_.top();
      heap_.pop();
      const auto at = pairs_.find(top.pair);
      if (at == pairs_.end() || at->second.count <= 0) continue;
      if (static_cast<std::uint64_t>(at->second.count) != top.count) {
        push(top.pair, at->second.count);  // the count has sunk since it was pushed
        continue;
      }
      return {top.pair, top.count};
    }
    return {0, 0};
  }

  void merge(Pair pair) {
    const auto merged = static_cast<TokenId>(bytes_.size());
    bytes_.push_back(bytes_[left_of(pair)] + bytes_[right_of(pair)]);
    auto node = pairs_.extract(pair);
    auto& in = node.mapped().words;
    std::sort(in.begin(), in.end());
    in.erase(std::unique(in.begin(), in.end()), in.end());
    risen_.clear();
    for (const auto index : in) merge_in(index, pair, merged);
    // A pair counts more than before only if it has the new token in it.
    std::sort(risen_.begin(), risen_.end());
    risen_.erase(std::unique(risen_.begin(), risen_.end()), risen_.end());
    for (const Pair fresh : risen_) push(fresh, pairs_[fresh].count);
    pairs_.erase(pair);
  }

  const std::string& bytes(TokenId id) const { return bytes_[id]; }

 private:
  struct Word {
    std::vector<TokenId> ids;
    std::uint64_t count;
  };
  struct PairInfo {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // may hold words that have lost the pair meanwhile
  };
  struct Candidate {
    std::uint64_t count;
    Pair pair;
  };
  struct Less {
    const std::vector<std::string>* bytes;
    bool operator()(const Candidate& a, const Candidate& b) const {
      if (a.count != b.count) return a.count < b.count;
      const int left = (*bytes)[left_of(a.pair)].compare((*bytes)[left_of(b.pair)]);
      if (left != 0) return left < 0;
      return (*bytes)[right_of(a.pair)] < (*bytes)[right_of(b.pair)];
    }
  };

  void add(Pair pair, std::int64_t count, std::uint32_t word) {
    auto& info = pairs_[pair];
    info.count += count;
    if (count > 0 && (info.words.empty() || info.words.back() != word)) info.words.push_back(word);
  }
  void push(Pair pair, std::int64_t count) {
    if (count > 0) heap_.push({static_cast<std::uint64_t>(count), pair});
  }

  // Replaces the pair in one word: takes the word's pairs out of the counts and puts in the new
  // ones. Words are short, so that doing all of them costs less than finding the few that change.
  void merge_in(std::uint32_t index, Pair pair, TokenId merged) {
    auto& word = words_[index];
    const auto& old = word.ids;
    fresh_.clear();
    for (std::size_t i = 0; i < old.size(); ++i) {
      if (i + 1 < old.size() && pair_of(old[i], old[i + 1]) == pair) {
        fresh_.push_back(merged);
        ++i;
      } else {
        fresh_.push_back(old[i]);
      }
    }
    if (fresh_.size() == old.size()) return;
    const auto count = static_cast<std::int64_t>(word.count);
    for (std::size_t i = 0; i + 1 < old.size(); ++i) {
      const Pair gone = pair_of(old[i], old[i + 1]);
      if (gone != pair) add(gone, -count, index);
    }
    for (std::size_t i = 0; i + 1 < fresh_.size(); ++i) {
      const Pair now = pair_of(fresh_[i], fresh_[i + 1]);
      add(now, count, index);
      if (fresh_[i] == merged || fresh_[i + 1] == merged) risen_.push_back(now);
    }
    word.ids.assign(fresh_.begin(), fresh_.end());
  }

  std::vector<std::string> bytes_;
  std::vector<Word> words_;
  std::unordered_map<Pair, PairInfo> pairs_;
  std::priority_queue<Candidate, std::vector<Candidate>, Less> heap_{Less{&bytes_}};
  std::vector<TokenId> fresh_;
  std::vector<Pair> risen_;
};

}  // namespace

Result<TrainedBpe> train_bpe(const TextSource& next_text, const BpeTrainerOptions& options) {
  TROUPE_RETURN_IF_ERROR(check(options));
  TrainedBpe out;
  out.special_tokens = options.special_tokens;
  const auto counts = TROUPE_TRY(count_words(next_text, options, out.bytes));
  if (counts.empty()) {
    return error(Code::kInvalidArgument,
                 "the {} bytes of text to train on hold no word: give a text", out.bytes);
  }
  out.word_count = counts.size();
  Merger merger(counts);
  const auto wanted =
      options.vocab_size - 256 - static_cast<std::int64_t>(options.special_tokens.size());
  while (static_cast<std::int64_t>(out.merges.size()) < wanted) {
    const auto [pair, count] = merger.best();
    if (count < std::max<std::uint64_t>(options.frequency_min, 1)) break;
    out.merges.emplace_back(merger.bytes(left_of(pair)), merger.bytes(right_of(pair)));
    merger.merge(pair);
    const auto done = static_cast<std::int64_t>(out.merges.size());
    if (options.progress && done % kProgressEvery == 0) options.progress(done, wanted);
  }
  return out;
}

std::string tokenizer_json_of(const TrainedBpe& trained) {
  const ByteAlphabet alphabet;
  json::Array added;
  json::Object vocab;
  json::Array merges;
  std::int64_t next_id = 0;
  for (const auto& token : trained.special_tokens) {
    added.push_back({{"id", next_id},
                     {"content", token},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
    vocab[token] = next_id++;
  }
  for (int byte = 0; byte < 256; ++byte) {
    vocab[alphabet.character(static_cast<unsigned char>(byte))] = next_id++;
  }
  for (const auto& [left, right] : trained.merges) {
    const auto a = alphabet.characters_of(left), b = alphabet.characters_of(right);
    merges.push_back(json::Value(a + " " + b));
    // Two merges may end in the same token; it has one id.
    if (!vocab.contains(a + b)) vocab[a + b] = next_id++;
  }
  const json::Object byte_level = {{"type", "ByteLevel"},
                                   {"add_prefix_space", false},
                                   {"trim_offsets", true},
                                   {"use_regex", true}};
  const json::Value root = {{"version", "1.0"},
                            {"truncation", nullptr},
                            {"padding", nullptr},
                            {"added_tokens", std::move(added)},
                            {"normalizer", nullptr},
                            {"pre_tokenizer", byte_level},
                            {"post_processor", byte_level},
                            {"decoder", byte_level},
                            {"model",
                             {{"type", "BPE"},
                              {"dropout", nullptr},
                              {"unk_token", nullptr},
                              {"continuing_subword_prefix", nullptr},
                              {"end_of_word_suffix", nullptr},
                              {"fuse_unk", false},
                              {"byte_fallback", false},
                              {"ignore_merges", false},
                              {"vocab", std::move(vocab)},
                              {"merges", std::move(merges)}}}};
  return json::write_indented(root, false) + "\n";
}

std::string tokenizer_config_json_of(const BpeTrainerOptions& options) {
  json::Object config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                         {"add_bos_token", false},
                         {"add_prefix_space", false},
                         {"clean_up_tokenization_spaces", false}};
  const std::pair<const char*, const std::string*> roles[] = {{"bos_token", &options.bos_token},
                                                              {"eos_token", &options.eos_token},
                                                              {"pad_token", &options.pad_token},
                                                              {"unk_token", &options.unk_token}};
  for (const auto& [key, token] : roles) {
    if (!token->empty()) config[key] = *token;
  }
  return json::write_indented(config, false) + "\n";
}

Status write_trained_tokenizer(FileSystem& files, const std::string& directory,
                               const TrainedBpe& trained, const BpeTrainerOptions& options) {
  TROUPE_RETURN_IF_ERROR(files.create_directories(directory));
  TROUPE_RETURN_IF_ERROR(write_file_atomically(files, join_path(directory, "tokenizer.json"),
                                               tokenizer_json_of(trained)));
  return write_file_atomically(files, join_path(directory, "tokenizer_config.json"),
                               tokenizer_config_json_of(options));
}

}  // namespace troupe::train
