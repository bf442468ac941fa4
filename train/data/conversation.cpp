#include "train/data/conversation.h"

#include <optional>

namespace troupe::train {
namespace {

using Converted = std::variant<Conversation, Dropped>;

const json::Value* column(const Record& record, const std::string& name) {
  if (name.empty()) return nullptr;
  const auto* value = record.if_contains(name);
  return value && !value->is_null() ? value : nullptr;
}

// A column's text; empty where the row lacks it or has null.
Result<std::string> text_of(const Record& record, const std::string& name) {
  const auto* value = column(record, name);
  if (!value) return std::string();
  if (!value->is_string()) {
    return error(Code::kInvalidArgument, "the column '{}' must be a string, is {}", name,
                 json::write(*value).substr(0, 60));
  }
  const auto& text = value->get_string();
  return std::string(text.data(), text.size());
}

// `tools` may be a list or an object in openai format; an empty one is none.
Result<std::string> tools_of(const Record& record, const DatasetAttributes& attributes) {
  const auto* value = column(record, attributes.tools);
  if (value && value->is_array()) {
    return value->get_array().empty() ? std::string() : json::write(*value);
  }
  if (value && value->is_object()) return json::write(*value);
  auto text = TROUPE_TRY(text_of(record, attributes.tools));
  return text == "[]" ? std::string() : text;
}

Status add_history(const Record& record, const std::string& name, std::vector<Message>& out) {
  const auto* history = column(record, name);
  if (!history || !history->is_array()) return {};
  for (const auto& turn : history->get_array()) {
    const auto* pair = turn.if_array();
    if (!pair || pair->size() != 2 || !(*pair)[0].is_string() || !(*pair)[1].is_string()) {
      return error(Code::kInvalidArgument,
                   "the column '{}' must be a list of [question, answer], has {}", name,
                   json::write(turn).substr(0, 60));
    }
    const auto text = [&](std::size_t i) {
      const auto& string = (*pair)[i].get_string();
      return std::string(string.data(), string.size());
    };
    out.push_back({Role::kUser, text(0)});
    out.push_back({Role::kAssistant, text(1)});
  }
  return {};
}

Result<Converted> convert_alpaca(const Record& record, const DatasetAttributes& attributes,
                                 bool for_sft) {
  Conversation out;
  TROUPE_RETURN_IF_ERROR(add_history(record, attributes.history, out.messages));
  auto content = TROUPE_TRY(text_of(record, attributes.prompt));
  const auto query = TROUPE_TRY(text_of(record, attributes.query));
  if (!content.empty() && !query.empty()) content += "\n";
  out.messages.push_back({Role::kUser, content + query});
  const auto* response = column(record, attributes.response);
  if (response && response->is_string()) {
    out.messages.push_back({Role::kAssistant, TROUPE_TRY(text_of(record, attributes.response))});
  } else if (for_sft) {
    return Converted(Dropped{fmt::format("no text in the column '{}'", attributes.response)});
  }
  out.system = TROUPE_TRY(text_of(record, attributes.system));
  out.tools = TROUPE_TRY(tools_of(record, attributes));
  return Converted(std::move(out));
}

std::optional<Role> role_of(const std::string& tag, const DatasetAttributes& attributes) {
  if (tag.empty()) return std::nullopt;
  if (tag == attributes.user_tag) return Role::kUser;
  if (tag == attributes.assistant_tag) return Role::kAssistant;
  if (tag == attributes.observation_tag) return Role::kObservation;
  if (tag == attributes.function_tag) return Role::kFunction;
  return std::nullopt;
}

// A message's tag and text.
struct RawMessage {
  std::string tag, content;
};

Result<std::vector<RawMessage>> messages_of(const Record& record,
                                            const DatasetAttributes& attributes) {
  const auto* list = column(record, attributes.messages);
  if (!list || !list->is_array()) {
    return error(Code::kInvalidArgument, "the column '{}' must be a list of messages",
                 attributes.messages);
  }
  std::vector<RawMessage> out;
  for (const auto& message : list->get_array()) {
    const auto tag = json::find_string(message, attributes.role_tag);
    const auto* value = json::find(message, attributes.content_tag);
    auto content = json::find_string(message, attributes.content_tag);
    const auto* calls = json::find(message, "tool_calls");
    if (attributes.formatting == Formatting::kOpenai && calls && calls->is_array() &&
        !calls->get_array().empty()) {
      out.push_back({attributes.function_tag, json::write(*calls)});
      continue;
    }
    if (!content && (!value || value->is_null())) content = "";
    if (!tag || !content) {
      return error(Code::kInvalidArgument,
                   "message {} of the column '{}' must have the strings '{}' and '{}'", out.size(),
                   attributes.messages, attributes.role_tag, attributes.content_tag);
    }
    out.push_back({*tag, *content});
  }
  return out;
}

// openai: answers of several tools in a row are one observation.
std::vector<RawMessage> join_observations(std::vector<RawMessage> messages,
                                          const std::string& observation_tag) {
  std::vector<RawMessage> out;
  bool open = false;
  for (auto& message : messages) {
    const bool observation = message.tag == observation_tag;
    if (observation && open) {
      out.back().content += "\n</tool_response>\n<tool_response>\n" + message.content;
    } else {
      out.push_back(std::move(message));
    }
    open = observation;
  }
  return out;
}

// LLaMA-Factory's converter for openai data says so in every system message without tools.
std::string openai_system(const std::string& system) {
  const std::string off = "detailed thinking off";
  if (system.empty()) return off;
  const bool said = system.find("detailed thinking on") != std::string::npos ||
                    system.find(off) != std::string::npos;
  return said ? system : system + "\n" + off;
}

Result<Converted> convert_messages(const Record& record, const DatasetAttributes& attributes) {
  auto messages = TROUPE_TRY(messages_of(record, attributes));
  Conversation out;
  if (!attributes.system_tag.empty() && !messages.empty() &&
      messages.front().tag == attributes.system_tag) {
    out.system = messages.front().content;
    messages.erase(messages.begin());
  } else {
    out.system = TROUPE_TRY(text_of(record, attributes.system));
  }
  if (attributes.formatting == Formatting::kOpenai) {
    messages = join_observations(std::move(messages), attributes.observation_tag);
  }
  for (std::size_t i = 0; i < messages.size(); ++i) {
    const auto role = role_of(messages[i].tag, attributes);
    const bool odd = role == Role::kUser || role == Role::kObservation;
    if (!role || odd != (i % 2 == 0)) {
      return Converted(
          Dropped{fmt::format("invalid role tag '{}' at message {}", messages[i].tag, i)});
    }
    out.messages.push_back({*role, std::move(messages[i].content)});
  }
  if (out.messages.size() % 2 != 0 || out.messages.empty()) {
    return Converted(Dropped{fmt::format("invalid message count {}", out.messages.size())});
  }
  out.tools = TROUPE_TRY(tools_of(record, attributes));
  if (attributes.formatting == Formatting::kOpenai) out.system = openai_system(out.system);
  return Converted(std::move(out));
}

}  // namespace

Result<Converted> convert_record(const Record& record, const DatasetAttributes& attributes,
                                 bool for_sft) {
  return attributes.formatting == Formatting::kAlpaca ? convert_alpaca(record, attributes, for_sft)
                                                      : convert_messages(record, attributes);
}

}  // namespace troupe::train
