#include "scheduler/node/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "runtime/base/file_system.h"
#include "runtime/base/limits.h"
#include "scheduler/policy/program_kind.h"

namespace troupe::scheduler {
namespace {

static_assert(2 * wire::kProgramBytesMax <= limits::kKeeperPacketBytesMax);

bool is_file(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

bool is_directory(const std::string& path) {
  struct stat status {};
  return ::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
}

bool is_executable(const std::string& path) {
  return is_file(path) && ::access(path.c_str(), X_OK) == 0;
}

std::string absolute(const std::string& path, const std::string& directory) {
  const std::filesystem::path whole = std::filesystem::path(directory) / path;
  return whole.lexically_normal().string();
}

// The way out where a program that PATH does not have lies in the working directory, which a shell
// would not look into either.
std::string beside(const std::string& name, const std::string& working_directory) {
  if (!is_file(absolute(name, working_directory))) return {};
  return fmt::format("; {} is in the working directory, and is run as ./{}", name, name);
}

// By a name without a slash, as a shell would.
Result<std::string> find_in_path(const std::string& name, const std::string& directories,
                                 const std::string& working_directory, const std::string& node) {
  for (std::size_t from = 0; from <= directories.size();) {
    const std::size_t end = std::min(directories.find(':', from), directories.size());
    const std::string directory = directories.substr(from, end - from);
    const std::string path =
        join_path(absolute(directory.empty() ? "." : directory, working_directory), name);
    if (is_executable(path)) return path;
    from = end + 1;
  }
  return error(Code::kNotFound,
               "node {} has no program '{}' in its PATH ({}): install it there, give its whole "
               "path, or set another PATH{}",
               node, name, directories, beside(name, working_directory));
}

Result<std::string> find_file(const std::string& given, const std::string& working_directory,
                              const std::string& node) {
  const std::string path = absolute(given, working_directory);
  if (!is_file(path)) {
    return error(Code::kNotFound,
                 "node {} has no file {}: copy it there, or name one that every node has", node,
                 path);
  }
  if (!is_executable(path)) {
    return error(Code::kPermissionDenied,
                 "{} on node {} is not executable: 'chmod +x' it, or name the program that runs it",
                 path, node);
  }
  return path;
}

}  // namespace

Result<process::SpawnOptions> program_options(const wire::ActorSpec& spec,
                                              const ProgramSurroundings& surroundings,
                                              const Environment& environment) {
  const PackagePlace& package = surroundings.package;
  wire::Program program = spec.program;
  program.working_directory = program.working_directory.empty()
                                  ? package.working_folder()
                                  : package.here(program.working_directory);
  program.argv.front() = package.here(program.argv.front());
  const std::string& node = surroundings.node;
  if (is_job_program(spec) && surroundings.token_file.empty()) {
    return error(Code::kFailedPrecondition,
                 "node {} has no token file that a job's driver could read: its token came by "
                 "standard input, or it is a driver's own node. Start it with --token-file, or "
                 "give --node another one",
                 node);
  }
  if (!is_directory(program.working_directory)) {
    return error(Code::kNotFound,
                 "node {} has no directory {}: make it there, or give one that is there with "
                 "--working-dir",
                 node, program.working_directory);
  }
  process::SpawnOptions options;
  options.argv = program.argv;
  options.working_directory = program.working_directory;
  options.environment = spec.environment;
  package.tell(options.environment, environment);
  // A driver that keeps its token to itself has programs that need not find the cluster.
  if (!surroundings.token_file.empty()) {
    options.environment["TROUPE_ADDRESS"] =
        net::Address{surroundings.head.host, surroundings.head.port, {}}.to_string();
    options.environment["TROUPE_TOKEN_FILE"] = surroundings.token_file;
    options.environment["TROUPE_INSECURE"] =
        surroundings.security == net::Security::kInsecure ? "1" : "0";
    options.environment["TROUPE_JOB_ID"] = spec.job_id.to_string();
  }
  const std::string& name = program.argv.front();
  if (name.find('/') != std::string::npos) {
    options.path = TROUPE_TRY(find_file(name, program.working_directory, node));
    return options;
  }
  const auto own = spec.environment.find("PATH");
  const std::string path = own != spec.environment.end()
                               ? own->second
                               : environment.get("PATH").value_or("/usr/local/bin:/usr/bin:/bin");
  options.path = TROUPE_TRY(find_in_path(name, path, program.working_directory, node));
  return options;
}

}  // namespace troupe::scheduler
