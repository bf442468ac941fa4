#include "tools/commands/tokenizer.h"

#include <charconv>
#include <iterator>
#include <memory>

#include "runtime/base/json.h"
#include "train/checkpoint/weights.h"
#include "train/report/format.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/tokenizer.h"
#include "train/tokenizer/unicode.h"

namespace troupe::tools {
namespace {

constexpr std::uint64_t kTextBytesMax = std::uint64_t{16} << 30;

struct TokenizerCommandOptions {
  std::vector<std::string> words;  // what to do, then files
  std::string tokenizer;
  bool special = false;
  bool json = false;
  std::vector<std::string> files;
  std::string out;
  std::uint64_t vocab_size = 8192;
};

Result<std::string> read_text(CommandContext& context, const std::string& path) {
  auto text = TROUPE_TRY(context.files.read(path, kTextBytesMax));
  if (const auto valid = train::valid_utf8_prefix(text); valid < text.size()) {
    return error(Code::kInvalidArgument,
                 "{}: the byte 0x{:02x} at {} is not part of UTF-8 text (iconv -t UTF-8 converts)",
                 path, static_cast<unsigned char>(text[valid]), valid);
  }
  return text;
}

// Each file is one text.
Status train_tokenizer(const TokenizerCommandOptions& options, CommandContext& context) {
  if (options.files.empty()) {
    return error(Code::kInvalidArgument, "give the texts to learn from: --text FILE[,FILE…]");
  }
  if (options.out.empty()) {
    return error(Code::kInvalidArgument, "give the folder to write to: --out DIR");
  }
  if (train::holds_weights(context.files, options.out)) {
    return error(Code::kInvalidArgument,
                 "--out {}: it holds a model, which knows its own tokenizer's ids alone; name "
                 "another folder",
                 options.out);
  }
  train::BpeTrainerOptions trainer;
  trainer.vocab_size =
      static_cast<std::int64_t>(std::min<std::uint64_t>(options.vocab_size, 1u << 24));
  trainer.special_tokens = {"<|endoftext|>", "<|pad|>"};
  trainer.pad_token = "<|pad|>";
  std::size_t next = 0;
  const auto trained = TROUPE_TRY(train::train_bpe(
      [&](std::string& text) -> Result<bool> {
        if (next == options.files.size()) return false;
        text = TROUPE_TRY(read_text(context, options.files[next++]));
        return true;
      },
      trainer));
  TROUPE_RETURN_IF_ERROR(
      train::write_trained_tokenizer(context.files, options.out, trained, trainer));
  context.out << fmt::format("{} tokens learned from {} ({} different words); written to {}\n",
                             trained.merges.size() + 256 + trained.special_tokens.size(),
                             train::format_bytes(trained.bytes), trained.word_count, options.out);
  return {};
}

// The texts of the files named, or of standard input, one after another: use(name, text).
template <typename Use>
Status each_text(const TokenizerCommandOptions& options, CommandContext& context, const Use& use) {
  if (options.words.size() == 1)
    return use(std::string(), std::string(std::istreambuf_iterator<char>(context.in), {}));
  for (std::size_t i = 1; i < options.words.size(); ++i) {
    TROUPE_RETURN_IF_ERROR(use(options.words[i], TROUPE_TRY(read_text(context, options.words[i]))));
  }
  return {};
}

Result<train::Tokenizer> load(const TokenizerCommandOptions& options, CommandContext& context) {
  if (options.tokenizer.empty())
    return error(Code::kInvalidArgument, "give the tokenizer's folder: --tokenizer DIR");
  return train::Tokenizer::load(context.files, options.tokenizer);
}

json::Object described(const train::Tokenizer& tokenizer, std::span<const train::TokenId> ids) {
  json::Array numbers, tokens;
  for (const train::TokenId id : ids) {
    numbers.push_back(id);
    const auto token = tokenizer.token(id);
    tokens.push_back(token ? json::Value(*token) : json::Value());
  }
  return {{"ids", std::move(numbers)}, {"tokens", std::move(tokens)}};
}

Status encode(const TokenizerCommandOptions& options, CommandContext& context) {
  const auto tokenizer = TROUPE_TRY(load(options, context));
  return each_text(options, context,
                   [&](const std::string& name, const std::string& text) -> Status {
                     const auto ids = TROUPE_TRY(tokenizer.encode(text, options.special));
                     if (options.json) {
                       auto line = described(tokenizer, ids);
                       if (!name.empty()) line["file"] = name;
                       context.out << json::write(line) << "\n";
                     } else {
                       context.out << fmt::format("{}\n", fmt::join(ids, " "));
                     }
                     return {};
                   });
}

// Each line has ids, separated by white space or commas; a line of text comes of each.
Status decode(const TokenizerCommandOptions& options, CommandContext& context) {
  const auto tokenizer = TROUPE_TRY(load(options, context));
  const auto decode_line = [&](std::string_view line, const std::string& where) -> Status {
    std::vector<train::TokenId> ids;
    for (std::size_t at = 0; at < line.size();) {
      if (std::string_view(" \t\r,").find(line[at]) != std::string_view::npos) {
        ++at;
        continue;
      }
      train::TokenId id = 0;
      const auto read = std::from_chars(line.data() + at, line.data() + line.size(), id);
      if (read.ec != std::errc() || id < 0 || id >= tokenizer.vocab_size()) {
        return error(Code::kInvalidArgument, "{}: '{}' is no id of this tokenizer (0 to {})", where,
                     line.substr(at, 20), tokenizer.vocab_size() - 1);
      }
      at = static_cast<std::size_t>(read.ptr - line.data());
      ids.push_back(id);
    }
    const auto text = tokenizer.decode(ids, !options.special);
    if (options.json) {
      auto object = described(tokenizer, ids);
      object["text"] = text;
      context.out << json::write(object) << "\n";
    } else {
      context.out << text << "\n";
    }
    return {};
  };
  return each_text(options, context, [&](const std::string& name, std::string_view text) -> Status {
    for (std::size_t number = 1; !text.empty(); ++number) {
      const auto end = std::min(text.find('\n'), text.size());
      TROUPE_RETURN_IF_ERROR(
          decode_line(text.substr(0, end),
                      fmt::format("{}:{}", name.empty() ? "standard input" : name, number)));
      text.remove_prefix(std::min(end + 1, text.size()));
    }
    return {};
  });
}

Status run(const TokenizerCommandOptions& options, CommandContext& context) {
  const std::string action = options.words.empty() ? "" : options.words.front();
  if (action == "encode") return encode(options, context);
  if (action == "decode") return decode(options, context);
  if (action == "train" && options.words.size() == 1) return train_tokenizer(options, context);
  return error(Code::kInvalidArgument,
               "what to do: 'troupe tokenizer train --text FILE --out DIR', 'troupe tokenizer "
               "encode --tokenizer DIR FILE…' or 'troupe tokenizer decode --tokenizer DIR FILE…'");
}

}  // namespace

void add_tokenizer_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<TokenizerCommandOptions>();
  Command(app, context, "tokenizer",
          "Trains a tokenizer (byte-level BPE), or turns texts into token ids and back.")
      .arguments(
          "action", options->words, "ACTION [FILE]...",
          "train; encode (files, or standard input: a line of ids each); decode (lines of ids)")
      .option("--tokenizer", options->tokenizer, "DIR",
              "folder with tokenizer.json or tokenizer.model")
      .flag("--special", options->special,
            "encode: add the special tokens of a text (begin, end); decode: keep them")
      .flag("--json", options->json, "a JSON object a line: ids, tokens, and text where decoded")
      .option("--text", options->files, "FILE", "a text to learn from; may be given several times")
      .option("--out", options->out, "DIR", "the folder to write tokenizer.json to")
      .option("--vocab-size", options->vocab_size, "N",
              "number of tokens in the vocabulary (default 8192)")
      .example("troupe tokenizer train --text corpus.txt --vocab-size 4096 --out my-tokenizer")
      .example("troupe tokenizer encode --tokenizer my-tokenizer --json chapter1.txt chapter2.txt")
      .example("echo 'Hello' | troupe tokenizer encode --tokenizer my-tokenizer")
      .run([options, &context] { return run(*options, context); });
}

}  // namespace troupe::tools
