#include "train/data/tool_formats.h"
#include "runtime/base/python_json.h"

#include <algorithm>

namespace troupe::train {
namespace {

// One call with its arguments.
struct Call {
  std::string name;
  json::Value arguments;
};

// -- descriptions -----------------------------------------------------------------------

// The function of a tool's description, and the description with its type around it.
const json::Value& function_of(const json::Value& tool) {
  const auto* function = json::find(tool, "function");
  return json::find_string(tool, "type") == "function" && function ? *function : tool;
}
json::Value wrapped(const json::Value& tool) {
  if (json::find_string(tool, "type") == "function") return tool;
  return json::Object{{"type", "function"}, {"function", tool}};
}

// A value as Python's str() shows it.
std::string python_text(const json::Value* value, bool quoted = false) {
  if (!value) return {};
  if (const auto* text = value->if_string()) {
    const std::string plain(text->data(), text->size());
    return quoted ? "'" + plain + "'" : plain;
  }
  if (value->is_null()) return "None";
  if (value->is_bool()) return value->get_bool() ? "True" : "False";
  const auto* array = value->if_array();
  if (!array) return json::python_json(*value);
  std::string out;
  for (const auto& item : *array) out += (out.empty() ? "" : ", ") + python_text(&item, true);
  return "[" + out + "]";
}

std::string described_parameter(const std::string& name, const json::Value& parameter,
                                const json::Value* required) {
  std::string out = "  - " + name + " (" + python_text(json::find(parameter, "type"));
  const auto* names = required ? required->if_array() : nullptr;
  if (names && std::find(names->begin(), names->end(), json::Value(name)) != names->end())
    out += ", required";
  out += "): " + python_text(json::find(parameter, "description"));
  if (const auto* choices = json::find(parameter, "enum"); choices && choices->is_array()) {
    std::string list;
    for (const auto& choice : choices->get_array())
      list += (list.empty() ? "" : ", ") + python_text(&choice);
    if (!choices->get_array().empty()) out += ", should be one of [" + list + "]";
  }
  if (const auto* items = json::find(parameter, "items");
      items && items->is_object() && !items->get_object().empty())
    out += ", where each item should be " + python_text(json::find(*items, "type"));
  return out + "\n";
}

std::string describe_default(const json::Array& tools) {
  std::string text, names;
  for (const auto& tool : tools) {
    const auto& function = function_of(tool);
    const auto name = python_text(json::find(function, "name"));
    text += "> Tool Name: " + name +
            "\nTool Description: " + python_text(json::find(function, "description")) +
            "\nTool Args:\n";
    const auto* parameters = json::find(function, "parameters");
    const auto* properties = parameters ? json::find(*parameters, "properties") : nullptr;
    if (properties && properties->is_object()) {
      for (const auto& member : properties->get_object()) {
        text += described_parameter(std::string(member.key()), member.value(),
                                    json::find(*parameters, "required"));
      }
    }
    text += "\n";
    names += (names.empty() ? "" : ", ") + name;
  }
  return "You have access to the following tools:\n" + text +
         "Use the following format if using a tool:\n```\nAction: tool name (one of [" + names +
         "])\nAction Input: the input to the tool, in a JSON format representing the kwargs (e.g. "
         "```{\"input\": \"hello world\", \"num_beams\": 5}```)\n```\n";
}

// Descriptions that are JSON between fixed texts.
struct Description {
  const char* before;
  const char* before_each;
  const char* behind_each;
  const char* behind;
  bool wrap;       // {"type": "function", "function": …} around each
  int indent = 0;  // of the JSON
};

std::string describe(const Description& form, const json::Array& tools) {
  std::string out = form.before;
  for (const auto& tool : tools) {
    out += form.before_each +
           json::python_json(form.wrap ? wrapped(tool) : function_of(tool), form.indent) +
           form.behind_each;
  }
  return out + form.behind;
}

constexpr const char* kSignatures =
    "# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
    "provided with function signatures within <tools></tools> XML tags:\n<tools>";
constexpr const char* kReturnJson =
    "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
    "within <tool_call></tool_call> XML tags:\n<tool_call>\n{\"name\": <function-name>, "
    "\"arguments\": <args-json-object>}\n</tool_call>";

std::string describe_qwen(const json::Array& tools) {
  return "\n\n" + describe({kSignatures, "\n", "", kReturnJson, true}, tools);
}

std::string describe_ling(const json::Array& tools) {
  return describe({kSignatures, "\n", "", kReturnJson, true}, tools) + "\ndetailed thinking off";
}

std::string describe_glm4_moe(const json::Array& tools) {
  return "\n\n" +
         describe({kSignatures, "\n", "",
                   "\n</tools>\n\nFor each function call, output the function name and arguments "
                   "within the following XML format:\n<tool_call>{function-name}\n<arg_key>"
                   "{arg-key-1}</arg_key>\n<arg_value>{arg-value-1}</arg_value>\n<arg_key>"
                   "{arg-key-2}</arg_key>\n<arg_value>{arg-value-2}</arg_value>\n...\n"
                   "</tool_call>\n",
                   true},
                  tools);
}

std::string describe_glm4(const json::Array& tools) {
  std::string out =
      "你是一个名为 ChatGLM 的人工智能助手。你是基于智谱 AI 公司训练的语言模型 GLM-4 "
      "模型开发的，你的任务是针对用户的问题和要求提供适当的答复和支持。\n\n# 可用工具";
  for (const auto& tool : tools) {
    const auto& function = function_of(tool);
    out += "\n\n## " + python_text(json::find(function, "name")) + "\n\n" +
           json::python_json(function, 4) + "\n在调用上述函数时，请使用 Json 格式表示调用的参数。";
  }
  return out;
}

std::string describe_minimax1(const json::Array& tools) {
  return describe(
      {"You are provided with these tools:\n<tools>\n", "", "\n",
       "</tools>\n\nIf you need to call tools, please respond with <tool_calls></tool_calls> XML "
       "tags, and provide tool-name and json-object of arguments, following the format below:\n"
       "<tool_calls>\n{\"name\": <tool-name-1>, \"arguments\": <args-json-object-1>}\n...\n"
       "</tool_calls>",
       false},
      tools);
}

std::string describe_minimax2(const json::Array& tools) {
  return describe(
      {"\n\n# Tools\n\nYou may call one or more tools to assist with the user query.\nHere are the "
       "tools available in JSONSchema format:\n\n<tools>\n",
       "<tool>", "</tool>\n",
       "</tools>\n\nWhen making tool calls, use XML format to invoke tools and pass parameters:\n\n"
       "<minimax:tool_call>\n<invoke name=\"tool-name-1\">\n<parameter name=\"param-key-1\">"
       "param-value-1</parameter>\n<parameter name=\"param-key-2\">param-value-2</parameter>\n...\n"
       "</invoke>\n</minimax:tool_call>",
       false},
      tools);
}

std::string describe_qwen3_5(const json::Array& tools) {
  return describe(
      {"\n\n# Tools\n\nYou have access to the following functions:\n\n<tools>", "\n", "",
       "\n</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO "
       "suffix:\n\n<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>\n"
       "value_1\n</parameter>\n<parameter=example_parameter_2>\nThis is the value for the second "
       "parameter\nthat can span\nmultiple lines\n</parameter>\n</function>\n</tool_call>\n\n"
       "<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified format: an inner "
       "<function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
       "- Required parameters MUST be specified\n- You may provide optional reasoning for your "
       "function call in natural language BEFORE the function call, but NOT after\n- If there is "
       "no function call available, answer the question like normal with your current knowledge "
       "and do not tell the user about function calls\n</IMPORTANT>",
       false},
      tools);
}

std::string describe_seed_oss(const json::Array& tools) {
  return "system\nYou are Doubao, a helpful AI assistant. You may call one or more functions to "
         "assist with the user query.Tool List:\nYou are authorized to use the following tools "
         "(described in JSON Schema format). Before performing any task, you must decide how to "
         "call them based on the descriptions and parameters of these tools.\n" +
         json::python_json(tools) +
         "\n工具调用请遵循如下格式:\n<seed:tool_call>\n<function=example_function_name>\n"
         "<parameter=example_parameter_1>value_1</parameter>\n<parameter=example_parameter_2>This "
         "is the value for the second parameter\nthat can span\nmultiple lines</parameter>\n"
         "</function>\n</seed:tool_call>\n";
}

std::string describe_mistral(const json::Array& tools) {
  json::Array list;
  for (const auto& tool : tools) list.push_back(wrapped(tool));
  return "[AVAILABLE_TOOLS] " + json::python_json(list) + "[/AVAILABLE_TOOLS]";
}

std::string describe_lfm2(const json::Array& tools) {
  json::Array list;
  for (const auto& tool : tools) list.push_back(function_of(tool));
  return "List of tools: <|tool_list_start|>" + json::python_json(list) + "<|tool_list_end|>";
}

constexpr const char* kLlama3Date = "{{date}}";

std::string describe_llama3(const json::Array& tools) {
  return describe(
      {"Cutting Knowledge Date: December 2023\nToday Date: {{date}}\n\nYou have access to the "
       "following functions. To call a function, please respond with JSON for a function call. "
       "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument "
       "name and its value}. Do not use variables.\n\n",
       "", "\n\n", "", true, 4},
      tools);
}

// -- calls ------------------------------------------------------------------------------

using Calls = std::vector<Call>;

json::Object named(const Call& call, const char* arguments) {
  return {{"name", call.name}, {arguments, call.arguments}};
}

std::string call_default(const Calls& calls) {
  std::string out;
  for (const auto& call : calls) {
    out += (out.empty() ? "Action: " : "\nAction: ") + call.name +
           "\nAction Input: " + json::python_json(call.arguments);
  }
  return out;
}

std::string call_qwen(const Calls& calls) {
  std::string out;
  for (const auto& call : calls) {
    out += std::string(out.empty() ? "" : "\n") + "<tool_call>\n" +
           json::python_json(named(call, "arguments")) + "\n</tool_call>";
  }
  return out;
}

std::string call_llama3(const Calls& calls) {
  if (calls.size() == 1) return json::python_json(named(calls[0], "parameters"));
  json::Array list;
  for (const auto& call : calls) list.push_back(named(call, "parameters"));
  return json::python_json(list);
}

std::string call_mistral(const Calls& calls) {
  json::Array list;
  for (const auto& call : calls) list.push_back(named(call, "arguments"));
  return json::python_json(list);
}

std::string call_glm4(const Calls& calls) {
  return calls[0].name + "\n" + json::python_json(calls[0].arguments);
}

std::string call_minimax1(const Calls& calls) {
  std::string out = "<tool_calls>\n";
  for (const auto& call : calls) out += json::python_json(named(call, "arguments")) + "\n";
  return out + "</tool_calls>";
}

// Calls whose arguments stand one by one. Texts stand there without quotes.
struct CallForm {
  const char* begin;  // in front of the function's name
  const char* behind_name;
  const char* key;  // in front of an argument's name
  const char* behind_key;
  const char* behind_value;
  const char* end;
  const char* between;  // calls
};

std::string written(const CallForm& form, const Calls& calls) {
  std::string out;
  for (const auto& call : calls) {
    if (&call != &calls.front()) out += form.between;
    out += form.begin + call.name + form.behind_name;
    for (const auto& member : call.arguments.get_object()) {
      out += form.key + std::string(member.key()) + form.behind_key;
      const auto* text = member.value().if_string();
      out += text ? std::string(text->data(), text->size()) : json::python_json(member.value());
      out += form.behind_value;
    }
    out += form.end;
  }
  return out;
}

std::string call_glm4_moe(const Calls& calls) {
  return written(
      {"\n<tool_call>", "", "\n<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>", "", "\n"},
      calls);
}
std::string call_minimax2(const Calls& calls) {
  return written({"<invoke name=\"", "\">", "\n<parameter name=\"", "\">", "</parameter>",
                  "\n</invoke>", "\n"},
                 calls);
}
std::string call_seed_oss(const Calls& calls) {
  return written({"\n<seed:tool_call>\n<function=", "", "\n<parameter=", ">", "</parameter>",
                  "\n</function>\n</seed:tool_call>", "\n"},
                 calls);
}
std::string call_qwen3_5(const Calls& calls) {
  return written({"<tool_call>\n<function=", ">", "\n<parameter=", ">\n", "\n</parameter>",
                  "\n</function>\n</tool_call>", "\n"},
                 calls);
}

std::string call_lfm2(const Calls& calls) {
  std::string out;
  for (const auto& call : calls) {
    std::string arguments;
    for (const auto& member : call.arguments.get_object()) {
      const auto* text = member.value().if_string();
      arguments += (arguments.empty() ? "" : ", ") + std::string(member.key()) + "=" +
                   (text ? "\"" + std::string(text->data(), text->size()) + "\""
                         : json::python_json(member.value()));
    }
    out += (out.empty() ? "" : ", ") + call.name + "(" + arguments + ")";
  }
  return "<|tool_call_start|>[" + out + "]<|tool_call_end|>";
}

struct ToolFormat {
  std::string_view name;
  std::string (*describe)(const json::Array& tools);
  std::string (*call)(const Calls& calls);
  bool one_by_one = false;  // arguments stand one by one: they must be an object
};
constexpr ToolFormat kFormats[] = {
    {"default", describe_default, call_default},
    {"glm4", describe_glm4, call_glm4},
    {"glm4_moe", describe_glm4_moe, call_glm4_moe, true},
    {"lfm2", describe_lfm2, call_lfm2, true},
    {"ling", describe_ling, call_qwen},
    {"llama3", describe_llama3, call_llama3},
    {"minimax1", describe_minimax1, call_minimax1},
    {"minimax2", describe_minimax2, call_minimax2, true},
    {"mistral", describe_mistral, call_mistral},
    {"qwen", describe_qwen, call_qwen},
    {"qwen3_5", describe_qwen3_5, call_qwen3_5, true},
    {"seed_oss", describe_seed_oss, call_seed_oss, true},
};

const ToolFormat* find_format(std::string_view name) {
  const auto found = std::find_if(std::begin(kFormats), std::end(kFormats),
                                  [&](const ToolFormat& format) { return format.name == name; });
  return found == std::end(kFormats) ? nullptr : found;
}

Status unknown_format(std::string_view format) {
  std::string names;
  for (const auto& name : tool_format_names()) names += (names.empty() ? "" : ", ") + name;
  return error(Code::kNotFound, "Tool utils `{}` not found. (known: {})", format, names);
}

// The calls of a function turn's JSON.
Result<Calls> calls_of(const ToolFormat& format, const std::string& text) {
  const auto invalid = [&](std::string_view what) {
    return error(Code::kInvalidArgument,
                 "Invalid JSON format in function message: {} ({}; it must be an object or a list "
                 "of objects with name and arguments)",
                 text.substr(0, 200), what);
  };
  const auto parsed = json::parse(text, "function message");
  if (!parsed) return invalid(parsed.status().message());
  const json::Array one = {*parsed};
  Calls out;
  for (const auto& call : parsed->is_array() ? parsed->get_array() : one) {
    const auto name = json::find_string(call, "name");
    const auto* given = json::find(call, "arguments");
    if (!name || !given) return invalid("name or arguments are missing");
    auto arguments = call_arguments(*given);
    if (format.one_by_one && !arguments.is_object())
      return invalid("with this template, arguments must be an object");
    out.push_back({*name, std::move(arguments)});
  }
  if (out.empty()) return invalid("there is no call");
  if (format.name == "glm4" && out.size() > 1) {
    return error(Code::kInvalidArgument,
                 "GLM-4 does not support parallel functions. (one call a turn; the turn has {})",
                 out.size());
  }
  return out;
}

// The first text from `begin` to the next `end`, both included; empty where there is none.
std::string_view between(std::string_view text, std::string_view begin, std::string_view end) {
  if (begin.empty() || end.empty()) return {};
  const auto from = text.find(begin);
  if (from == std::string_view::npos) return {};
  const auto to = text.find(end, from + begin.size());
  if (to == std::string_view::npos) return {};
  return text.substr(from, to + end.size() - from);
}

// Without every `part`.
std::string without(std::string text, const std::string& part) {
  for (std::size_t at = 0; (at = text.find(part, at)) != std::string::npos;)
    text.erase(at, part.size());
  return text;
}

}  // namespace

bool is_tool_format(std::string_view format) { return find_format(format) != nullptr; }

std::vector<std::string> tool_format_names() {
  std::vector<std::string> names;
  for (const auto& format : kFormats) names.emplace_back(format.name);
  return names;
}

json::Value call_arguments(const json::Value& arguments) {
  if (!arguments.is_string()) return arguments;
  auto parsed = json::parse(arguments.get_string(), "arguments");
  return parsed.ok() && parsed->is_object() ? std::move(*parsed) : arguments;
}

Result<std::string> describe_tools(std::string_view format, const std::string& tools,
                                   const std::string& date) {
  const auto* known = find_format(format);
  if (!known) return unknown_format(format);
  const auto parsed = json::parse(tools, "tools");
  const auto invalid = [&](const std::string& why) {
    return error(Code::kInvalidArgument,
                 "Invalid JSON format in tool description: {} ({}; it must be a list of objects "
                 "with name, description and parameters)",
                 tools.substr(0, 200), why);
  };
  if (!parsed) return invalid(parsed.status().message());
  if (!parsed->is_array()) return invalid("it is no list");
  for (const auto& tool : parsed->get_array()) {
    if (!json::find_string(function_of(tool), "name")) return invalid("a tool has no name");
  }
  if (parsed->get_array().empty()) return std::string();
  auto out = known->describe(parsed->get_array());
  if (format == "llama3") {
    if (const auto at = out.find(kLlama3Date); at != std::string::npos)
      out.replace(at, std::string_view(kLlama3Date).size(), date);
  }
  return out;
}

Result<std::string> write_calls(std::string_view format, const std::string& content,
                                const CallWords& words) {
  const auto* known = find_format(format);
  if (!known) return unknown_format(format);
  std::string front, calls;
  if (const std::string call(between(content, words.call_begin, words.call_end)); !call.empty()) {
    front = without(content, call);
    calls = call.substr(words.call_begin.size(),
                        call.size() - words.call_begin.size() - words.call_end.size());
  } else {
    front = between(content, words.thought_begin, words.thought_end);
    calls = front.empty() ? content : without(content, front);
  }
  return front + known->call(TROUPE_TRY(calls_of(*known, calls)));
}

}  // namespace troupe::train
