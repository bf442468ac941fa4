#include "runtime/wire/spec_size.h"

#include "runtime/base/limits.h"

namespace troupe::wire {
namespace {

std::size_t bytes_of(const std::map<std::string, std::string>& environment) {
  std::size_t bytes = 0;
  for (const auto& [name, value] : environment) bytes += name.size() + value.size();
  return bytes;
}

std::size_t bytes_of(const Resources& resources) {
  std::size_t bytes = 0;
  for (const auto& [name, amount] : resources) bytes += name.size() + sizeof amount;
  return bytes;
}

std::size_t bytes_of(const LabelSelector& selector) {
  std::size_t bytes = 0;
  for (const LabelTerm& term : selector) {
    bytes += sizeof term + term.key.size();
    for (const std::string& value : term.values) bytes += sizeof value + value.size();
  }
  return bytes;
}

}  // namespace

std::size_t variable_bytes(const ActorSpec& spec) {
  std::size_t bytes = spec.constructor_arguments.size() + bytes_of(spec.environment) +
                      bytes_of(spec.resources) + bytes_of(spec.label_selector) +
                      bytes_of(spec.label_preference);
  for (const std::string* words :
       {&spec.type, &spec.name, &spec.image.path, &spec.run, &spec.log_path, &spec.namespace_name,
        &spec.program.working_directory, &spec.program.stdout_path, &spec.program.stderr_path}) {
    bytes += words->size();
  }
  for (const std::string& argument : spec.program.argv) bytes += argument.size() + 1;
  return bytes;
}

Status check_size(const ActorSpec& spec) {
  const std::size_t bytes = variable_bytes(spec);
  const std::size_t environment = bytes_of(spec.environment);
  const std::string who =
      spec.name.empty() ? spec.type : fmt::format("{} '{}'", spec.type, spec.name.substr(0, 200));
  if (bytes > limits::kActorSpecBytesMax) {
    return error(
        Code::kInvalidArgument,
        "the spec of {} has {} bytes, {} of them constructor arguments and {} environment; "
        "at most {} are taken, since the head keeps it for every restart. Put large data "
        "into the actor's first call, or into a file that its constructor reads",
        who, bytes, spec.constructor_arguments.size(), environment, limits::kActorSpecBytesMax);
  }
  if (environment > kProgramBytesMax) {
    return error(Code::kInvalidArgument,
                 "the environment of {} has {} bytes; at most {} are taken, since a process is "
                 "started with it. Put large data into constructor arguments, or into a file",
                 who, environment, kProgramBytesMax);
  }
  return {};
}

}  // namespace troupe::wire
