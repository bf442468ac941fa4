#pragma once
// Tokenizers of Hugging Face's tokenizer.json (BPE, byte-level or not, Unigram, WordPiece), and of
// SentencePiece's tokenizer.model.
//
//   Tokenizer tokenizer = TROUPE_TRY(Tokenizer::load(files, "model-directory"));
//   std::vector<TokenId> ids = TROUPE_TRY(tokenizer.encode("Hello", false));
//   std::string text = tokenizer.decode(ids, true);
//
// Text that is not UTF-8 is read as Hugging Face's Python callers would pass it on: every maximal
// invalid sequence becomes U+FFFD, and those are encoded.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/file_system.h"
#include "runtime/base/status.h"
#include "train/tokenizer/bpe_model.h"

namespace troupe::train {

// A value that is cheap to copy; copies share the immutable tables. All const calls may be made
// from any threads at once; the set_… calls change this copy only and must not run beside others.
class Tokenizer {
 public:
  // `path`: a directory with tokenizer.json, else tokenizer.model, and, where present,
  // tokenizer_config.json, special_tokens_map.json, added_tokens.json (beside a tokenizer.model)
  // and chat_template.jinja; or the path of one of the first two, whose directory is read likewise.
  // Damaged files are kInvalidArgument with file and key, tokenizers of other kinds (WordLevel, …)
  // kUnsupported by name.
  static Result<Tokenizer> load(FileSystem& files, const std::string& path);
  // From the texts of the files; empty: there is none. `name` stands in errors.
  static Result<Tokenizer> from_text(std::string_view tokenizer_json,
                                     std::string_view tokenizer_config_json,
                                     std::string_view special_tokens_map_json,
                                     const std::string& name);

  // From what files() gave.
  static Result<Tokenizer> from_files(const std::map<std::string, std::string>& texts,
                                      const std::string& name);

  // The ids of a text. `add_special_tokens` applies the file's post_processor (e.g. puts bos in
  // front). Fails only where a regular expression of the file gives up (kResourceExhausted).
  Result<std::vector<TokenId>> encode(std::string_view text, bool add_special_tokens) const;
  // The same, appended to `out`.
  Status encode_to(std::string_view text, bool add_special_tokens, std::vector<TokenId>& out) const;

  // The text of ids; ids without a token are left out, invalid UTF-8 becomes U+FFFD.
  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const;

  // The largest id + 1: what an embedding must have rows for.
  std::int64_t vocab_size() const;
  std::optional<TokenId> token_id(std::string_view token) const;
  std::optional<std::string> token(TokenId id) const;
  bool is_special(TokenId id) const;
  // One byte of a character that the vocabulary lacks.
  bool is_byte(TokenId id) const;
  // How many bytes of UTF-8 text the token stands for: 0 for special tokens and unknown ids. The
  // sum over a text's ids is the text's size, but for characters that the vocabulary lacks, text
  // changed by the normalizer, and a space that SentencePiece puts in front.
  std::size_t byte_count(TokenId id) const;
  std::size_t byte_count(std::span<const TokenId> ids) const;

  // From tokenizer_config.json, else special_tokens_map.json; nothing where neither names one.
  std::optional<TokenId> bos_id() const { return bos_; }
  std::optional<TokenId> eos_id() const { return eos_; }
  std::optional<TokenId> pad_id() const { return pad_; }
  std::optional<TokenId> unk_id() const { return unk_; }
  // tokenizer_config.json's add_bos_token; where it is not given, true for Llama's and Gemma's
  // tokenizer classes as in transformers 4.57.
  bool add_bos_token() const;
  // The Jinja text of chat_template.jinja or of tokenizer_config.json's chat_template, if any;
  // of a list of named ones `default`.
  const std::optional<std::string>& chat_template() const;
  // Of that list, or of additional_chat_templates, `tool_use`: for conversations with tools.
  const std::optional<std::string>& tool_use_template() const;

  // Replaces the end-of-text (padding) token; kNotFound where the vocabulary lacks it. It becomes a
  // special token: it is recognised in texts and left out by decode.
  Status set_eos(std::string_view token);
  Status set_pad(std::string_view token);
  // Makes a token of the vocabulary special.
  Status add_special_token(std::string_view token);
  // Gives tokens that the vocabulary lacks the ids from vocab_size() on, and makes those it has
  // added ones: from then on each is one token wherever it stands in a text; `special` ones are
  // left out by decode. How many were new.
  Result<std::int64_t> add_tokens(const std::vector<std::string>& tokens, bool special);
  // Whether special tokens in a text are text like any other (tokenizer_config.json's
  // split_special_tokens).
  void set_split_special_tokens(bool split) { split_special_tokens_ = split; }
  // Replaces chat_template(); it will be written as a file of its own.
  void set_chat_template(std::string jinja);

  // tokenizer.json: as it was read, or made of a tokenizer.model, with the tokens added or made
  // special since.
  Result<std::string> tokenizer_json() const;
  // Name → text of tokenizer.json, tokenizer_config.json and Jinja texts that were files of their
  // own: what was read, with eos, pad and added tokens as they are now.
  Result<std::map<std::string, std::string>> files() const;
  // Writes them.
  Status save(FileSystem& files, const std::string& directory) const;

 private:
  struct Core;
  class Workspaces;
  Tokenizer() = default;
  template <typename Model>
  Status encode_plain(const Model& model, std::string_view text, std::vector<TokenId>& out) const;

  std::shared_ptr<const Core> core_;
  std::shared_ptr<Workspaces> workspaces_;
  std::optional<TokenId> bos_, eos_, pad_, unk_;
  bool split_special_tokens_ = false;

  friend struct TokenizerLoader;
};

// Text out of ids that come one by one, in whole characters: a character cut in two by token
// borders appears with its last token.
class IncrementalDecoder {
 public:
  IncrementalDecoder(const Tokenizer& tokenizer, bool skip_special_tokens);
  // The text that is certain now and was not returned before; often empty within a character.
  std::string push(TokenId id);
  // What is left, incomplete characters as U+FFFD.
  std::string finish();

 private:
  std::string decode_from(std::size_t begin, std::size_t end) const;

  Tokenizer tokenizer_;
  bool skip_special_tokens_;
  std::vector<TokenId> ids_;
  std::size_t prefix_ = 0;  // ids before it do not change the text behind `read_`
  std::size_t read_ = 0;    // the text of ids before it was returned
};

}  // namespace troupe::train
