#pragma once
// Conversations rendered by a template as one text, and what of it is trained: Axolotl's way. (The
// tables of chat_template.h tokenise every piece of a template by itself.)

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "train/data/row_encoder.h"

namespace troupe::train {

// Axolotl's templates that are there: alpaca, chatml, gemma, gemma3, llama3, phi_3, qwen_25.
std::vector<std::string> axolotl_template_names();
// As Jinja text, which is also what the folder of the trained model gets. Empty: there is no such
// template.
std::string axolotl_template_jinja(std::string_view name);

// By a template's name, tokenizer_default (the tokenizer's own Jinja text) or jinja (the source's).
// The conversation is rendered once and tokenised as a whole, without added tokens. A trained
// turn's content has labels, the role in front of it never has; its span is found by rendering the
// turn with another text. The token that ends the turn, among the three behind the content, has a
// label by train_on_eot, the end token by train_on_eos.
Result<std::unique_ptr<RowEncoder>> make_conversation_encoder(const RowSource& source,
                                                              const Tokenizer& tokenizer,
                                                              std::vector<std::string>& notes);

}  // namespace troupe::train
