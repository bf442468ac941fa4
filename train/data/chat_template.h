#pragma once
// Chat templates: how the turns of a conversation become token ids.
//
// The table is LLaMA-Factory's. Every slot of a template is tokenised by itself and the ids are
// joined, so that the ids of a template's own text never depend on what stands beside it.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/status.h"
#include "train/data/conversation.h"
#include "train/tokenizer/tokenizer.h"

namespace troupe::train {

// A piece of a template: a text in which the first {{content}} stands for the message and, in a
// user's turn, the first {{idx}} for the turn's number; or a token.
struct Slot {
  enum class Kind { kText, kBos, kEos, kToken };
  Kind kind = Kind::kText;
  std::string text;  // kToken: the token
};

class TokenizerTemplate;

struct ChatTemplate {
  enum class Style {
    kPlain,      // turn 0: prefix + system + user
    kInFirst,    // the system text stands inside the first user message (Llama 2)
    kReasoning,  // an empty thought is added where an answer has none (Qwen 3)
  };
  std::string name;
  std::vector<Slot> user, assistant, system, function, observation, prefix;
  std::vector<Slot> tools;  // around the JSON of the tools; empty: tool_format describes them
  std::string tool_format;  // tool_formats.h
  std::string default_system;
  std::vector<std::string> stop_words;
  std::string thought_begin, thought_end;  // around a thought
  std::string empty_thought;               // kReasoning
  std::string call_begin, call_end;        // around the JSON of calls in a function turn's data
  bool replace_eos = false;                // the first stop word becomes the tokenizer's end token
  bool efficient_eos = false;              // the end token stands once, behind the last turn
  bool replace_jinja = false;  // its Jinja text takes the place of one that the tokenizer has
  Style style = Style::kPlain;
  // Renders whole conversations instead of the slots (tokenizer_template.h); null: it does not.
  std::shared_ptr<const TokenizerTemplate> own;
  std::string note;  // what a person should know of how it was chosen
};

// kNotFound "Template X does not exist." with the names that do.
Result<ChatTemplate> chat_template(std::string_view name);
std::vector<std::string> chat_template_names();

// Key `tool_format`: tools are described and called in another format, and a call is followed by
// the end token alone. kNotFound where there is no such format.
Status set_tool_format(ChatTemplate& chat, const std::string& format);

// The template of a run: the named one; where none is named, that of the tokenizer's own
// Jinja text (template_of_tokenizer), else `empty`.
Result<ChatTemplate> choose_template(const std::optional<std::string>& name,
                                     const Tokenizer& tokenizer);

// Gives the tokenizer the template's end token, a missing end token ("<|endoftext|>") and a missing
// padding token (the end token). Tokens that the vocabulary lacks are kNotFound. Says in `notes`
// what was changed.
Status fix_special_tokens(const ChatTemplate& chat, Tokenizer& tokenizer,
                          std::vector<std::string>& notes);

// The template as Jinja text, for programs that render the tokenizer's chat_template. The system
// text where a conversation has none is `default_system`, else the template's. Nothing where the
// template names tokens by themselves, as LLaMA-Factory does.
std::optional<std::string> jinja_template(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                          const std::optional<std::string>& default_system);

// The template whose text of jinja_template() the tokenizer's chat_template is, with the system
// text that it was written with: what a training by a named template has left beside its model.
// Rendered as one text, its pieces would become other ids where the tokenizer marks the beginning
// of a text. Nothing where the text is another one, or that of several that write conversations
// differently.
std::optional<ChatTemplate> template_behind_jinja(const Tokenizer& tokenizer);

// Gives the tokenizer that text, unless it has one of its own that the template leaves.
void set_jinja_template(const ChatTemplate& chat, Tokenizer& tokenizer,
                        const std::optional<std::string>& default_system);

struct EncodeOptions {
  std::optional<std::string> default_system;  // instead of the template's
  // kReasoning. false: thoughts are taken out; true: a missing one is added and trained, else it
  // belongs to the question.
  std::optional<bool> enable_thinking = true;
  // kReasoning: thoughts of former answers stay where mask_history or a single answer drops them.
  bool preserve_thinking = false;
  bool mask_history = false;
  // What the tool format llama3 calls today: the day that Llama 3.1's own template has.
  std::string tool_date = "26 Jul 2024";
};

// One question with its answer, as ids.
struct EncodedTurn {
  std::vector<TokenId> source, target;
};

// The turns of a conversation: an even number of messages.
Result<std::vector<EncodedTurn>> encode_conversation(const ChatTemplate& chat,
                                                     const Tokenizer& tokenizer,
                                                     const Conversation& conversation,
                                                     const EncodeOptions& options);

// The last message as the answer to all before it, as in generation and preference data.
Result<EncodedTurn> encode_last_answer(const ChatTemplate& chat, const Tokenizer& tokenizer,
                                       const Conversation& conversation,
                                       const EncodeOptions& options);

}  // namespace troupe::train
