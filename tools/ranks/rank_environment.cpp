#include "tools/ranks/rank_environment.h"

#include <fmt/format.h>

#include <cctype>

#include "runtime/base/suggest.h"

namespace troupe::tools {
namespace {

// Puts values for ${name}, and for $name where no letter of a longer name follows.
std::string substitute(std::string_view text, const std::map<std::string, std::string>& values) {
  const auto is_name = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_';
  };
  std::string result;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] != '$') {
      result += text[i++];
      continue;
    }
    const bool braces = i + 1 < text.size() && text[i + 1] == '{';
    const std::size_t begin = i + (braces ? 2 : 1);
    std::size_t end = begin;
    while (end < text.size() && is_name(text[end])) ++end;
    const bool whole = !braces || (end < text.size() && text[end] == '}');
    const auto found = values.find(std::string(text.substr(begin, end - begin)));
    if (!whole || found == values.end()) {
      result += text[i++];
      continue;
    }
    result += found->second;
    i = end + (braces ? 1 : 0);
  }
  return result;
}

}  // namespace

std::map<std::string, std::string> rank_environment(const RunOptions& options, const World& world,
                                                    const RankPlace& place,
                                                    const std::string& error_file,
                                                    const Environment& launcher) {
  const auto text = [](int number) { return std::to_string(number); };
  std::map<std::string, std::string> variables = options.environment;
  if (options.alone) return variables;
  variables["LOCAL_RANK"] = text(place.local_rank);
  variables["RANK"] = text(place.rank);
  variables["WORLD_SIZE"] = text(world.size);
  variables["MASTER_ADDR"] = world.master_addr;
  variables["MASTER_PORT"] = text(world.master_port);
  if (options.slots_are_gpus && static_cast<std::size_t>(place.group_rank) < options.hosts.size()) {
    const auto& slots = options.hosts[static_cast<std::size_t>(place.group_rank)].slots;
    variables["CUDA_VISIBLE_DEVICES"] = join_numbers(slots, ",");
  }
  if (options.variables == RankVariables::kDeepSpeed) {
    variables["LOCAL_SIZE"] = text(place.local_world_size);
    variables["CROSS_RANK"] = text(place.group_rank);
    variables["CROSS_SIZE"] = text(world.nodes);
    return variables;
  }
  variables["GROUP_RANK"] = text(place.group_rank);
  variables["ROLE_RANK"] = text(place.rank);
  variables["ROLE_NAME"] = options.role;
  variables["LOCAL_WORLD_SIZE"] = text(place.local_world_size);
  variables["GROUP_WORLD_SIZE"] = text(world.nodes);
  variables["ROLE_WORLD_SIZE"] = text(world.size);
  variables["TORCHELASTIC_RESTART_COUNT"] = text(world.restart_count);
  variables["TORCHELASTIC_MAX_RESTARTS"] = text(options.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = options.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["TORCHELASTIC_ERROR_FILE"] = error_file;
  if (!launcher.get("TORCH_NCCL_ASYNC_ERROR_HANDLING")) {
    variables["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "1";
  }
  if (place.local_world_size > 1 && !launcher.get("OMP_NUM_THREADS") &&
      !variables.contains("OMP_NUM_THREADS")) {
    variables["OMP_NUM_THREADS"] = "1";
  }
  return variables;
}

std::vector<std::string> rank_words(const RunOptions& options, int local_rank) {
  std::vector<std::string> words = options.program;
  if (options.substitutes_local_rank) {
    const std::map<std::string, std::string> values{{"local_rank", std::to_string(local_rank)}};
    for (std::string& word : words) word = substitute(word, values);
  }
  if (options.local_rank_argument_at) {
    words.insert(words.begin() + static_cast<std::ptrdiff_t>(*options.local_rank_argument_at),
                 fmt::format("--local_rank={}", local_rank));
  }
  return words;
}

std::string line_prefix(const RunOptions& options, const RankPlace& place,
                        const Environment& launcher) {
  const auto form = launcher.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  return substitute(form.value_or("[${role_name}${local_rank}]:"),
                    {{"role_name", options.role},
                     {"rank", std::to_string(place.rank)},
                     {"local_rank", std::to_string(place.local_rank)}});
}

}  // namespace troupe::tools
