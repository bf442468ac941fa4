// Where no template is named: slots guessed from the tokenizer's Jinja text as LLaMA-Factory does
// it, and conversations that the text itself renders where it cannot be taken apart.

#include "train/data/tokenizer_template.h"

#include <filesystem>

#include "tests/train/data/lf_golden.h"
#include "train/data/conversation_encoder.h"
#include "train/data/encode_samples.h"
#include "train/data/row_encoder.h"

namespace troupe::train {
namespace {

std::vector<std::string> texts_of(const std::vector<Slot>& slots) {
  std::vector<std::string> out;
  for (const auto& slot : slots) out.push_back(slot.text);
  return out;
}
std::vector<std::string> golden_slots(const json::Value& record, const char* name) {
  std::vector<std::string> out;
  for (const auto& slot : record.at("slots").at(name).as_array())
    out.emplace_back(slot.as_string());
  return out;
}

Conversation golden_conversation(const json::Value& told) {
  Conversation out;
  for (const auto& one : told.at("messages").as_array()) {
    auto content = text_of(one, "content");
    for (const auto& [from, to] : {std::pair("{T0}", "<think>\n"), {"{T1}", "\n</think>\n\n"}}) {
      for (std::size_t at = 0; (at = content.find(from)) != std::string::npos;)
        content.replace(at, 4, to);
    }
    out.messages.push_back(
        {text_of(one, "role") == "user" ? Role::kUser : Role::kAssistant, content});
  }
  out.system = text_of(told, "system");
  return out;
}

TEST_CASE("slots guessed from chat templates, and the ids they make, equal LLaMA-Factory's") {
  const auto records = golden_lines("parsed_templates");
  const auto conversations = golden_json("inputs/conversations.json");
  GoldenTokenizers tokenizers;
  for (const auto& record : records) {
    const auto name = text_of(record, "chat_template");
    CAPTURE(name);
    const auto path = tests::test_data("chat_templates/" + name + ".jinja");
    const auto* base = tokenizers.get(text_of(record, "tokenizer"));
    if (!path || !base) return;
    Tokenizer tokenizer = *base;
    tokenizer.set_chat_template(PosixFileSystem().read(*path, 1 << 20).value());
    const auto chosen = choose_template(std::nullopt, tokenizer);
    REQUIRE_MESSAGE(chosen.ok(), chosen.status().to_string());
    if (const auto failure = json::find_string(record, "error")) {
      CHECK(chosen->own);
      CHECK(chosen->note.find(failure->substr(failure->find(": ") + 2)) != std::string::npos);
      continue;
    }
    CHECK(!chosen->own);
    const bool repeats = name.find("SmolLM3") != std::string::npos;
    CHECK((chosen->note.find("several turns") != std::string::npos) == repeats);
    CHECK((chosen->style == ChatTemplate::Style::kReasoning) ==
          (text_of(record, "cls") == "ReasoningTemplate"));
    CHECK(chosen->default_system == text_of(record, "default_system"));
    CHECK(texts_of(chosen->prefix) == golden_slots(record, "prefix"));
    CHECK(texts_of(chosen->system) == golden_slots(record, "system"));
    CHECK(texts_of(chosen->user) == golden_slots(record, "user"));
    CHECK(texts_of(chosen->assistant) == golden_slots(record, "assistant"));
    CHECK(texts_of(chosen->observation) == golden_slots(record, "observation"));
    std::vector<std::string> notes;
    REQUIRE(fix_special_tokens(*chosen, tokenizer, notes).ok());
    CHECK(tokenizer.token(*tokenizer.eos_id()) == text_of(record, "eos"));
    for (const auto& [key, row] : record.at("rows").as_object()) {
      CAPTURE(std::string(key));
      TokenDataset out(TokenDataset::Kind::kSupervised, 0);
      EncodeReport report;
      const std::vector<Conversation> rows{golden_conversation(conversations.at(key))};
      REQUIRE(encode_supervised(rows, *chosen, tokenizer, {}, out, report).ok());
      const auto ids = ints_of(row.at("ids"));
      CHECK(ids_of(out, 0) == ids);
      const auto labels = out.labels(0);
      CHECK(std::vector<TokenId>(labels.begin(), labels.end()) == labels_of(row, ids));
    }
  }
}

// The sample's text, trained parts between brackets.
std::string shown(const Tokenizer& tokenizer, const Conversation& conversation,
                  const EncodeOptions& options = {}) {
  const auto chat = choose_template(std::nullopt, tokenizer);
  if (!chat) return chat.status().to_string();
  const auto turns = encode_conversation(*chat, tokenizer, conversation, options);
  if (!turns) return turns.status().to_string();
  std::string out;
  for (const auto& [source, target] : *turns)
    out += tokenizer.decode(source, false) + "[" + tokenizer.decode(target, false) + "]";
  return out;
}

Tokenizer with_template(const std::string& jinja) {
  auto tokenizer = byte_tokenizer({"<s>", "<e>"}, R"({"bos_token": "<s>", "eos_token": "<e>"})");
  tokenizer.set_chat_template(jinja);
  return tokenizer;
}

// Refuses a system text, and so the probes.
constexpr const char* kNoSystem =
    "{{ bos_token }}{% if messages and messages[0].role == 'system' %}"
    "{{ raise_exception('no system') }}{% endif %}{% for m in messages %}"
    "<{{ m.role }}>\n{{ m.content | trim }}{{ eos_token }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>\n{% endif %}";

TEST_CASE("a template that cannot be taken apart renders conversations, answers are trained") {
  const Conversation talk{.messages = {{Role::kUser, " a "},
                                       {Role::kAssistant, "b§ "},
                                       {Role::kUser, "b§"},
                                       {Role::kAssistant, ""}},
                          .system = {},
                          .tools = {}};
  CHECK(shown(with_template(kNoSystem), talk) ==
        "<s><user>\na<e>\n<assistant>\n[b§<e>\n]<user>\nb§<e>\n<assistant>\n[<e>\n]");
  Conversation refused = talk;
  refused.system = "s";
  CHECK(shown(with_template(kNoSystem), refused).find("no system") != std::string::npos);
  // What is said of history is less than what was said.
  const std::string thoughts =
      "{% if messages[0].role == 'system' %}{{ raise_exception('x') }}{% endif %}"
      "{% for m in messages %}{{ m.role[0] }}:"
      "{{ m.content.split('</think>')[-1] if not loop.last else m.content }};{% endfor %}"
      "{{ 'a:' if add_generation_prompt }}";
  const Conversation thought{.messages = {{Role::kUser, "p"},
                                          {Role::kAssistant, "<think>h</think>q"},
                                          {Role::kUser, "r"},
                                          {Role::kAssistant, "<think>k</think>s"}},
                             .system = {},
                             .tools = {}};
  CHECK(shown(with_template(thoughts), thought) == "u:p;a:[q;]u:r;a:[<think>k</think>s;]");
  CHECK(shown(with_template("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}"
                            "{{ messages[0].role.x.y if messages[0].role == 'system' }}"),
              talk)
            .find("name a template") != std::string::npos);
}

TEST_CASE("generation marks what is trained") {
  const std::string marked =
      "{% if messages[0].role == 'system' %}{{ raise_exception('x') }}{% endif %}"
      "{% for m in messages %}{% if m.role == 'assistant' %}é{% generation %}{{ m.content }}!"
      "{% endgeneration %}.{% else %}ü{{ m.content }} {% endif %}{% endfor %}";
  const Conversation talk{
      .messages = {{Role::kUser, "a"}, {Role::kAssistant, "b"}}, .system = {}, .tools = {}};
  CHECK(shown(with_template(marked), talk) == "üa é[b!]");
}

TEST_CASE("calls and tools reach the template as transformers gives them") {
  const std::string calls =
      "{% if messages[0].role == 'system' %}{{ raise_exception('x') }}{% endif %}"
      "{{ tools | tojson }}\n{% for m in messages %}{{ m.role[0] }}:{% if m.tool_calls %}"
      "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }})"
      "{% endfor %}{% else %}{{ m.content }}{% endif %};{% endfor %}"
      "{{ 'a:' if add_generation_prompt }}";
  const Conversation talk{.messages = {{Role::kUser, "q"},
                                       {Role::kFunction, R"({"name": "f", "arguments": {"x": 1}})"},
                                       {Role::kObservation, "5"},
                                       {Role::kAssistant, "five"}},
                          .system = {},
                          .tools = R"([{"name": "f"}])"};
  const std::string written = "[{\"name\": \"f\"}]\nu:q;a:[f({\"x\": 1});]t:5;a:[five;]";
  CHECK(shown(with_template(calls), talk) == written);
  // OpenAI's form: arguments are the text of an object.
  Conversation as_text = talk;
  as_text.messages[1].content = R"({"name": "f", "arguments": "{\"x\": 1}"})";
  CHECK(shown(with_template(calls), as_text) == written);
  // A text for conversations with tools alone.
  const json::Object config{
      {"bos_token", "<s>"},
      {"eos_token", "<e>"},
      {"chat_template", json::Array{json::Object{{"name", "default"}, {"template", kNoSystem}},
                                    json::Object{{"name", "tool_use"}, {"template", calls}}}}};
  const auto two = byte_tokenizer({"<s>", "<e>"}, json::write(config));
  CHECK(shown(two, talk) == written);
  const Conversation plain{
      .messages = {{Role::kUser, "a"}, {Role::kAssistant, "b"}}, .system = {}, .tools = {}};
  CHECK(shown(two, plain) == "<s><user>\na<e>\n<assistant>\n[b<e>\n]");
  // As a file of its own it is read, and written again.
  DataFolder folder;
  REQUIRE(two.save(folder.files, folder.directory.path()).ok());
  std::filesystem::create_directories(folder.directory.file("additional_chat_templates"));
  folder.write("additional_chat_templates/tool_use.jinja", "other");
  const auto loaded = Tokenizer::load(folder.files, folder.directory.path()).value();
  CHECK(loaded.chat_template() == kNoSystem);
  CHECK(loaded.tool_use_template() == "other");
  const DataFolder copy;
  REQUIRE(loaded.save(folder.files, copy.directory.path()).ok());
  CHECK(Tokenizer::load(folder.files, copy.directory.path()).value().tool_use_template() ==
        "other");
}

TEST_CASE("a tokenizer's templates by name: default counts") {
  const auto tokenizer = byte_tokenizer({"<e>"}, R"({"eos_token": "<e>", "chat_template": [
      {"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  CHECK(tokenizer.chat_template() == "d");
  CHECK(tokenizer.tool_use_template() == "t");
  auto broken = with_template("{% if %}");
  CHECK(choose_template(std::nullopt, broken).status().message().find("chat_template") !=
        std::string::npos);
}

TEST_CASE("Axolotl's tokenizer_default and jinja: as the built-in template with the same text") {
  const auto samples_of = [](const std::string& entry, const Tokenizer& tokenizer) {
    const auto source = parse_row_source(json::parse(entry, "entry").value(), false).value();
    std::vector<std::string> notes;
    const auto encoder = make_row_encoder(source, tokenizer, 2048, notes);
    if (!encoder) return encoder.status().to_string();
    std::vector<TokenRow> out;
    const auto row = json::parse(R"({"messages": [{"role": "user", "content": " a"},
        {"role": "assistant", "content": "b"}, {"role": "user", "content": "c "},
        {"role": "assistant", "content": "dd"}]})",
                                 "row")
                         .value();
    const Status done = (*encoder)->encode(row.as_object(), out);
    if (!done.ok()) return done.to_string();
    std::string text;
    for (std::size_t i = 0; i < out[0].ids.size(); ++i)
      text += fmt::format("{}{} ", out[0].ids[i], out[0].labels[i] < 0 ? "" : "*");
    return text;
  };
  const auto plain = byte_tokenizer({"<s>", "<e>"}, R"({"bos_token": "<s>", "eos_token": "<e>"})");
  for (const auto& name : axolotl_template_names()) {
    CAPTURE(name);
    const auto entry = [](const std::string& chosen) {
      return R"({"path": "x", "type": "chat_template", "chat_template": ")" + chosen + "\"}";
    };
    const auto expected = samples_of(entry(name), plain);
    CHECK(expected.find('*') != std::string::npos);
    const std::string jinja = axolotl_template_jinja(name);
    CHECK(samples_of(entry("tokenizer_default"), with_template(jinja)) == expected);
    CHECK(samples_of(entry("tokenizer_default_fallback_llama3"), with_template(jinja)) == expected);
    json::Object given = json::parse(entry("jinja"), "entry").value().as_object();
    given["chat_template_jinja"] = jinja;
    CHECK(samples_of(json::write(given), plain) == expected);
  }
  CHECK(samples_of(R"({"path": "x", "type": "chat_template", "chat_template": "jinja"})", plain)
            .find("chat_template_jinja gives no text") != std::string::npos);
  CHECK(samples_of(R"({"path": "x", "type": "chat_template"})", with_template(kNoSystem)).size() >
        9);
}

}  // namespace
}  // namespace troupe::train
