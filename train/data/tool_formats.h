#pragma once
// How tools are described to a model and how it calls them: LLaMA-Factory's tool formats.

#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/json.h"
#include "runtime/base/status.h"

namespace troupe::train {

// Whether there is such a format; all of them, sorted.
bool is_tool_format(std::string_view format);
std::vector<std::string> tool_format_names();

// The text behind the system message. `tools`: a JSON list of functions, or of {"type": "function",
// "function": …}; an empty list has no text. `date` ("15 Jan 2026") stands in the format llama3.
Result<std::string> describe_tools(std::string_view format, const std::string& tools,
                                   const std::string& date);

// Arguments of a call as the value that they are: OpenAI's form has them as the text of an object.
json::Value call_arguments(const json::Value& arguments);

// The words that parts of a function turn stand between. Empty: there are none.
struct CallWords {
  std::string_view thought_begin, thought_end;
  std::string_view call_begin, call_end;
};

// A function turn as the model writes it. `content` is a JSON object or list of {"name",
// "arguments"}: what is between the call words where it has them, and a thought or the rest of the
// text goes in front.
Result<std::string> write_calls(std::string_view format, const std::string& content,
                                const CallWords& words);

}  // namespace troupe::train
