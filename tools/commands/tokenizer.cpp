#include "tools/commands/tokenizer.h"

#include <memory>

#include "train/report/format.h"
#include "train/tokenizer/bpe_trainer.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::tools {
namespace {

struct TokenizerCommandOptions {
  std::vector<std::string> words;
  std::vector<std::string> files;
  std::string out;
  std::uint64_t vocab_size = 8192;
};

// Each file is one text.
Status train_tokenizer(const TokenizerCommandOptions& options, CommandContext& context) {
  if (options.files.empty()) {
    return error(Code::kInvalidArgument, "give the texts to learn from: --text FILE[,FILE…]");
  }
  if (options.out.empty()) {
    return error(Code::kInvalidArgument, "give the folder to write to: --out DIR");
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
        text = TROUPE_TRY(context.files.read(options.files[next++], std::uint64_t{16} << 30));
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

Status run(const TokenizerCommandOptions& options, CommandContext& context) {
  if (options.words != std::vector<std::string>{"train"}) {
    return error(Code::kInvalidArgument,
                 "what to do with the tokenizer: 'troupe tokenizer train --text FILE --out DIR'");
  }
  return train_tokenizer(options, context);
}

}  // namespace

void add_tokenizer_command(CLI::App& app, CommandContext& context) {
  auto options = std::make_shared<TokenizerCommandOptions>();
  Command(app, context, "tokenizer", "Trains a byte-level BPE tokenizer (tokenizer.json).")
      .option("action", options->words, "ACTION", "what to do: train")
      .option("--text", options->files, "FILE", "a text to learn from; may be given several times")
      .option("--out", options->out, "DIR", "the folder to write tokenizer.json to")
      .option("--vocab-size", options->vocab_size, "N",
              "number of tokens in the vocabulary (default 8192)")
      .example("troupe tokenizer train --text corpus.txt --vocab-size 4096 --out my-tokenizer")
      .run([options, &context] { return run(*options, context); });
}

}  // namespace troupe::tools
