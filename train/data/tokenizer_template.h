#pragma once
// The Jinja template that a tokenizer brings: rendering conversations with it, and what of them is
// an answer.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/chat_template.h"
#include "train/jinja/template.h"

namespace troupe::train {

class TokenizerTemplate {
 public:
  // `source`: the template, "tokenizer's chat_template" and the like in errors `name`.
  static Result<TokenizerTemplate> parse(std::string_view source, std::string name,
                                         const Tokenizer& tokenizer);
  // The tokenizer's own: the text `default`, and for conversations with tools `tool_use`, where it
  // has that. It has a chat_template().
  static Result<TokenizerTemplate> of(const Tokenizer& tokenizer);

  // Messages as transformers' apply_chat_template takes them. strftime_now says 26 Jul 2024, so
  // that samples are the same on every day of a run. What the template refuses is kInvalidArgument
  // in its words.
  struct Extras {
    json::Value tools;  // a list; null: none
    std::optional<bool> enable_thinking;
  };
  Result<jinja::Rendered> render(const json::Array& messages, bool add_generation_prompt,
                                 const Extras& extras) const;

  const std::string& source() const { return source_; }

 private:
  TokenizerTemplate(jinja::Template parsed, std::string source, std::string name)
      : template_(std::move(parsed)), source_(std::move(source)), name_(std::move(name)) {}

  jinja::Template template_;
  std::optional<jinja::Template> tool_use_;
  std::string source_, name_;
  json::Object tokens_;  // the special tokens' words by name
};

// The slots that LLaMA-Factory guesses where no template is named: it renders probes and takes
// apart what comes. kInvalidArgument where the template cannot be taken apart, with the reason.
Result<ChatTemplate> guess_template(const TokenizerTemplate& own, const Tokenizer& tokenizer);

// The guessed slots; where there are none, a ChatTemplate that renders whole conversations with
// `own`, and says so in its note.
Result<ChatTemplate> template_of_tokenizer(const Tokenizer& tokenizer);

// A conversation rendered as a whole, and cut where answers begin and end: at {% generation %},
// where the template has it, else where a text in an answer's place changes what is rendered, from
// behind the generation prompt to the end of the turn. The pieces are tokenised one by one, as the
// slots of other templates are.
Result<std::vector<EncodedTurn>> encode_by_tokenizer_template(const TokenizerTemplate& own,
                                                              const Tokenizer& tokenizer,
                                                              const Conversation& conversation,
                                                              const EncodeOptions& options);

}  // namespace troupe::train
