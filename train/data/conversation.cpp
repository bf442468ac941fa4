#include "train/data/conversation.h"
#include "runtime/base/python_json.h"

namespace troupe::train {
namespace {

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

// `tools` may be JSON text, a list or an object.
Result<std::string> tools_of(const Record& record, const DatasetAttributes& attributes) {
  const auto* value = column(record, attributes.tools);
  if (value && (value->is_array() || value->is_object())) return json::python_json(*value);
  return text_of(record, attributes.tools);
}

Status add_history(const Record& record, const std::string& name, std::vector<Message>& out) {
  const auto* history = column(record, name);
  if (!history) return {};
  if (!history->is_array()) {
    return error(Code::kInvalidArgument,
                 "the column '{}' must be a list of [question, answer], is {}", name,
                 json::write(*history).substr(0, 60));
  }
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

// The column with the judgement of an answer: nothing where the row lacks it.
Result<std::optional<bool>> judgement(const Record& record, const DatasetAttributes& attributes) {
  const auto* value = column(record, attributes.kto_tag);
  if (!value) return std::optional<bool>();
  if (!value->is_bool()) {
    return error(Code::kInvalidArgument, "the column '{}' (kto_tag) must be true or false, is {}",
                 attributes.kto_tag, json::write(*value).substr(0, 60));
  }
  return std::optional(value->get_bool());
}

std::optional<std::string> string_in(const Record& record, const std::string& name) {
  const auto* value = column(record, name);
  if (!value || !value->is_string()) return std::nullopt;
  return std::string(value->get_string());
}

Result<Conversation> convert_alpaca(const Record& record, const DatasetAttributes& attributes,
                                    bool needs_answer) {
  Conversation out;
  TROUPE_RETURN_IF_ERROR(add_history(record, attributes.history, out.messages));
  auto content = TROUPE_TRY(text_of(record, attributes.prompt));
  const auto query = TROUPE_TRY(text_of(record, attributes.query));
  if (!content.empty() && !query.empty()) content += "\n";
  out.messages.push_back({Role::kUser, content + query});
  auto answer = string_in(record, attributes.response);
  std::string missing = attributes.response;
  if (attributes.ranking) {
    answer = string_in(record, attributes.chosen);
    const auto rejected = string_in(record, attributes.rejected);
    if (rejected) out.rejected = Message{Role::kAssistant, *rejected};
    missing = answer ? attributes.rejected : attributes.chosen;
    if (!rejected) answer.reset();
  } else if (!attributes.kto_tag.empty()) {
    out.desirable = TROUPE_TRY(judgement(record, attributes));
    if (!out.desirable) missing = attributes.kto_tag, answer.reset();
  }
  if (answer) {
    out.messages.push_back({Role::kAssistant, std::move(*answer)});
  } else if (needs_answer) {
    out.fault = missing.empty() ? "columns name no response"
                                : fmt::format("nothing fit in the column '{}'", missing);
  }
  out.system = TROUPE_TRY(text_of(record, attributes.system));
  out.tools = TROUPE_TRY(tools_of(record, attributes));
  return out;
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

// The functions of OpenAI's tool_calls as the text of a function turn. Arguments stay the text that
// they are there, as in LLaMA-Factory.
std::string calls_of(const json::Array& tool_calls) {
  json::Array functions;
  for (const auto& call : tool_calls) {
    const auto* function = json::find(call, "function");
    functions.push_back(function ? *function : call);
  }
  return json::python_json(functions);
}

Result<RawMessage> raw_message(const json::Value& message, const DatasetAttributes& attributes) {
  const auto* calls = json::find(message, "tool_calls");
  if (attributes.formatting == Formatting::kOpenai && calls && calls->is_array() &&
      !calls->get_array().empty())
    return RawMessage{attributes.function_tag, calls_of(calls->get_array())};
  if (attributes.role_tag.empty() || attributes.content_tag.empty()) {
    return error(Code::kInvalidArgument,
                 "cannot be read: the entry's tags name no {}, so there is none (\"tags\": "
                 "{{\"role_tag\": …, \"content_tag\": …}})",
                 attributes.role_tag.empty() ? "role_tag" : "content_tag");
  }
  const auto tag = json::find_string(message, attributes.role_tag);
  const auto content = json::find_string(message, attributes.content_tag);
  if (!tag || !content) {
    return error(Code::kInvalidArgument,
                 "must have the strings '{}' and '{}', as the entry's tags name them "
                 "(\"tags\": {{\"role_tag\": …, \"content_tag\": …}}){}, is {}",
                 attributes.role_tag, attributes.content_tag,
                 calls ? "; tool_calls are read with \"formatting\": \"openai\"" : "",
                 json::write(message).substr(0, 100));
  }
  return RawMessage{*tag, *content};
}

Result<std::vector<RawMessage>> messages_of(const Record& record,
                                            const DatasetAttributes& attributes) {
  const auto* list = column(record, attributes.messages);
  if (!list) {
    std::string names;
    for (const auto& member : record)
      names += (names.empty() ? "" : ", ") + std::string(member.key());
    return error(Code::kInvalidArgument,
                 "the row has no column '{}', which must be a list of messages; it has: {}. Name "
                 "the column as `columns`: {{\"messages\": …}} in dataset_info.json",
                 attributes.messages, names);
  }
  if (!list->is_array()) {
    return error(Code::kInvalidArgument, "the column '{}' must be a list of messages",
                 attributes.messages);
  }
  std::vector<RawMessage> out;
  for (const auto& message : list->get_array()) {
    auto made = raw_message(message, attributes);
    if (!made) {
      return made.status().prefixed(
          fmt::format("message {} of the column '{}'", out.size(), attributes.messages));
    }
    out.push_back(std::move(*made));
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

// LLaMA-Factory's converter for openai data always does this to the system message.
std::string openai_system(const std::string& system, bool has_tools) {
  const std::string off(kThinkingOff);
  if (has_tools) return system.empty() ? system : system + "\n";
  if (system.empty()) return off;
  const bool said = system.find("detailed thinking on") != std::string::npos ||
                    system.find(off) != std::string::npos;
  return said ? system : system + "\n" + off;
}

// One of the two answers of ranking data.
Result<Message> answer_of(const Record& record, const std::string& name,
                          const DatasetAttributes& attributes) {
  const auto* value = column(record, name);
  if (!value) return error(Code::kInvalidArgument, "the column '{}' has no message", name);
  auto raw = raw_message(*value, attributes);
  if (!raw) return raw.status().prefixed(fmt::format("the column '{}'", name));
  const auto role = role_of(raw->tag, attributes);
  if (!role)
    return error(Code::kInvalidArgument,
                 "the column '{}' has the role '{}', which tags do not name", name, raw->tag);
  return Message{*role, std::move(raw->content)};
}

Status add_answers(const Record& record, const DatasetAttributes& attributes, Conversation& out) {
  if (attributes.ranking) {
    out.messages.push_back(TROUPE_TRY(answer_of(record, attributes.chosen, attributes)));
    out.rejected = TROUPE_TRY(answer_of(record, attributes.rejected, attributes));
  } else if (!attributes.kto_tag.empty()) {
    out.desirable = TROUPE_TRY(judgement(record, attributes));
    if (!out.desirable && out.fault.empty())
      out.fault = fmt::format("nothing in the column '{}'", attributes.kto_tag);
  }
  return {};
}

Result<Conversation> convert_messages(const Record& record, const DatasetAttributes& attributes) {
  auto messages = TROUPE_TRY(messages_of(record, attributes));
  const bool openai = attributes.formatting == Formatting::kOpenai;
  Conversation out;
  if (!attributes.system_tag.empty() && !messages.empty() &&
      messages.front().tag == attributes.system_tag) {
    out.system = messages.front().content;
    messages.erase(messages.begin());
  } else {
    out.system = TROUPE_TRY(text_of(record, attributes.system));
  }
  if (openai) {
    messages = join_observations(std::move(messages), attributes.observation_tag);
    // What a tool said last is no question to an answer, and nothing would be trained of it.
    if (!messages.empty() && messages.back().tag == attributes.observation_tag) messages.pop_back();
  }
  for (std::size_t i = 0; i < messages.size() && out.fault.empty(); ++i) {
    const auto role = role_of(messages[i].tag, attributes);
    const bool odd = role == Role::kUser || role == Role::kObservation;
    if (!role || odd != (i % 2 == 0))
      out.fault = fmt::format("invalid role tag '{}' at message {}", messages[i].tag, i);
    out.messages.push_back({role.value_or(Role::kUser), std::move(messages[i].content)});
  }
  if (out.fault.empty() && (out.messages.empty() || out.messages.size() % 2 != attributes.ranking))
    out.fault = fmt::format("invalid message count {}", out.messages.size());
  TROUPE_RETURN_IF_ERROR(add_answers(record, attributes, out));
  out.tools = TROUPE_TRY(tools_of(record, attributes));
  if (openai) out.system = openai_system(out.system, !out.tools.empty());
  return out;
}

}  // namespace

Result<Conversation> convert_record(const Record& record, const DatasetAttributes& attributes,
                                    bool needs_answer) {
  return attributes.formatting == Formatting::kAlpaca
             ? convert_alpaca(record, attributes, needs_answer)
             : convert_messages(record, attributes);
}

}  // namespace troupe::train
