#include "tools/commands/ship.h"

#include <errno.h>
#include <fnmatch.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <utility>

#include "runtime/base/limits.h"
#include "runtime/process/child_program.h"
#include "scheduler/packages/package_file.h"

namespace troupe::tools {
namespace {

namespace fs = std::filesystem;
using wire::PackageEntryKind;

constexpr Duration kLddTime = std::chrono::seconds(30);
// Libraries that lie below are the system's: a node has its own, which fit to each other.
constexpr std::string_view kSystemFolders[] = {"/lib/",     "/lib64/",     "/lib32/",
                                               "/usr/lib/", "/usr/lib64/", "/usr/lib32/"};

std::string in_mib(std::uint64_t bytes) {
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1u << 20));
}

std::string work(const std::string& path) { return join_path(scheduler::kPackageWork, path); }

// What is gathered, by its path in the package.
class Gatherer {
 public:
  Gatherer(const ShipRequest& request, fs::path folder, fs::path scratch)
      : request_(request), folder_(std::move(folder)), scratch_(std::move(scratch)) {}

  Status gather_folder();
  // As it is run in the working folder there.
  Result<std::string> gather_program(const std::string& name);
  Status gather_libraries();
  Status check_limits() const;
  std::vector<scheduler::PackageSource> take();

 private:
  bool leaves_out(const std::string& path) const;
  Status gather_entry(const std::string& path, std::vector<std::string>& folders);
  void add_folder(const std::string& path);
  Status add_file(const std::string& path, const fs::path& from);
  Status add_link(const std::string& path, const std::string& target);
  // Its path in the folder; nothing where it lies elsewhere.
  std::optional<std::string> within(const fs::path& file) const;
  Result<std::string> output_of_ldd() const;

  const ShipRequest& request_;
  const fs::path folder_;   // without links
  const fs::path scratch_;  // for files of ours
  fs::path program_;
  std::map<std::string, scheduler::PackageSource> sources_;
};

bool Gatherer::leaves_out(const std::string& path) const {
  const std::string name = path.substr(path.rfind('/') + 1);
  return name == ".git" || std::ranges::any_of(request_.excluded, [&](const std::string& pattern) {
           const bool is_name = pattern.find('/') == std::string::npos;
           return ::fnmatch(pattern.c_str(), (is_name ? name : path).c_str(), FNM_PATHNAME) == 0;
         });
}

void Gatherer::add_folder(const std::string& path) {
  if (path.empty() || sources_.contains(path)) return;
  const std::size_t slash = path.rfind('/');
  add_folder(slash == std::string::npos ? "" : path.substr(0, slash));
  sources_[path].entry = {path, PackageEntryKind::kDirectory, false, 0, {}};
}

Status Gatherer::add_file(const std::string& path, const fs::path& from) {
  struct stat status {};
  if (::stat(from.c_str(), &status) != 0 || ::access(from.c_str(), R_OK) != 0) {
    return errno_status(errno, "read", from.string())
        .prefixed("it is to be shipped, unless --exclude leaves it out");
  }
  add_folder(path.substr(0, path.rfind('/')));
  sources_[path] = {{path,
                     PackageEntryKind::kFile,
                     (status.st_mode & S_IXUSR) != 0,
                     static_cast<std::uint64_t>(status.st_size),
                     {}},
                    from.string()};
  return {};
}

// What may stand in a package is judged here already, where it can be left out.
Status Gatherer::add_link(const std::string& path, const std::string& target) {
  add_folder(path.substr(0, path.rfind('/')));
  const wire::PackageEntry entry{path, PackageEntryKind::kSymlink, false, 0, target};
  if (!scheduler::link_stays_inside(entry)) {
    return error(Code::kInvalidArgument,
                 "{} is a link to {}, out of what is shipped: leave it out with --exclude, or put "
                 "there what it leads to",
                 path, target);
  }
  sources_[path].entry = entry;
  return {};
}

std::optional<std::string> Gatherer::within(const fs::path& file) const {
  const std::string relative = file.lexically_relative(folder_).string();
  if (relative.empty() || relative == "." || relative == ".." || relative.starts_with("../")) {
    return std::nullopt;
  }
  return relative;
}

// --- the working folder --------------------------------------------------------------------------

Status Gatherer::gather_folder() {
  add_folder(std::string(scheduler::kPackageWork));
  std::vector<std::string> folders{""};
  // Of what has far too many files not all of them are looked at.
  while (!folders.empty() && sources_.size() <= limits::kPackageEntriesMax) {
    const std::string folder = std::move(folders.back());
    folders.pop_back();
    std::error_code ec;
    const fs::path from = folder.empty() ? folder_ : folder_ / folder;
    for (auto it = fs::directory_iterator(from, ec); !ec && it != fs::directory_iterator();
         it.increment(ec)) {
      TROUPE_RETURN_IF_ERROR(
          gather_entry(join_path(folder, it->path().filename().string()), folders));
    }
    if (ec) {
      return errno_status(ec.value(), "read the folder", from.string())
          .prefixed("it is to be shipped, unless --exclude leaves it out");
    }
  }
  return {};
}

Status Gatherer::gather_entry(const std::string& path, std::vector<std::string>& folders) {
  if (leaves_out(path)) return {};
  const fs::path from = folder_ / path;
  std::error_code ec;
  const fs::file_status status = fs::symlink_status(from, ec);
  if (fs::is_directory(status)) {
    add_folder(work(path));
    folders.push_back(path);
    return {};
  }
  if (fs::is_symlink(status)) return add_link(work(path), fs::read_symlink(from, ec).string());
  if (fs::is_regular_file(status)) return add_file(work(path), from);
  return error(Code::kInvalidArgument,
               "{} is no file, folder or link, and cannot be shipped: --exclude leaves it out",
               from.string());
}

// --- the program and its libraries ---------------------------------------------------------------

Result<std::string> Gatherer::gather_program(const std::string& name) {
  // As everywhere, a name without a slash is looked for in the node's PATH.
  if (name.find('/') == std::string::npos) return name;
  std::error_code ec;
  program_ = fs::canonical(folder_ / name, ec);
  if (ec) {
    return error(Code::kNotFound, "there is no program {} in {}: {}", name, folder_.string(),
                 ec.message());
  }
  if (!fs::is_regular_file(program_, ec)) {
    return error(Code::kInvalidArgument, "{} is no file that can be run", program_.string());
  }
  if (::access(program_.c_str(), X_OK) != 0) {
    return error(Code::kPermissionDenied,
                 "{} is not executable: 'chmod +x' it, or name the program that runs it",
                 program_.string());
  }
  if (const auto path = within(program_)) {
    TROUPE_RETURN_IF_ERROR(add_file(work(*path), program_));
    // By a link in the folder, where it was named so: some programs look at their name.
    const auto named = within((folder_ / name).lexically_normal());
    return "./" + (named && sources_.contains(work(*named)) ? *named : *path);
  }
  const std::string path = join_path(scheduler::kPackageProgram, program_.filename().string());
  TROUPE_RETURN_IF_ERROR(add_file(path, program_));
  return "../" + path;
}

// Nothing where the program is not linked dynamically.
Result<std::string> Gatherer::output_of_ldd() const {
  const std::string output = scratch_ / "ldd";
  const auto ldd = TROUPE_TRY(
      process::ChildProgram::start({.program = "/bin/sh",
                                    .arguments = {"-c", "exec ldd \"$0\"", program_.string()},
                                    .environment = {{"LC_ALL", "C"}},
                                    .output_path = output}));
  const auto end = ldd->wait(Deadline::after(kLddTime));
  if (!end.ok()) {
    return end.status().prefixed("ldd, asked for the libraries of " + program_.string());
  }
  if (*end != 0) return std::string();
  return PosixFileSystem().read(output, limits::kConfigBytesMax);
}

// Lines such as "\tlibwords.so.1 => /home/me/lib/libwords.so.1 (0x00007f…)".
Status Gatherer::gather_libraries() {
  if (program_.empty()) return {};
  const std::string output = TROUPE_TRY(output_of_ldd());
  for (std::size_t from = 0; from < output.size();) {
    const std::size_t end = std::min(output.find('\n', from), output.size());
    const std::string line = output.substr(from, end - from);
    from = end + 1;
    const std::size_t arrow = line.find(" => ");
    const std::size_t begin = line.find_first_not_of("\t ");
    if (arrow == std::string::npos || begin >= arrow) continue;
    const std::string name = line.substr(begin, arrow - begin);
    const std::string file = line.substr(arrow + 4, line.rfind(" (0x") - arrow - 4);
    const bool of_system = std::ranges::any_of(
        kSystemFolders, [&](std::string_view folder) { return file.starts_with(folder); });
    if (of_system || leaves_out(name)) continue;
    std::error_code ec;
    const fs::path library = fs::canonical(file, ec);
    if (ec) {
      return error(Code::kNotFound,
                   "library {} of {}: {}; LD_LIBRARY_PATH says where it lies, or --exclude {} "
                   "leaves it to the nodes",
                   name, program_.string(), file, name);
    }
    const std::string path = join_path(scheduler::kPackageLibraries, name);
    const auto inside = within(library);
    TROUPE_RETURN_IF_ERROR(inside && sources_.contains(work(*inside))
                               ? add_link(path, "../" + work(*inside))
                               : add_file(path, library));
  }
  return {};
}

// --- how much it is ------------------------------------------------------------------------------

Status Gatherer::check_limits() const {
  if (sources_.size() > limits::kPackageEntriesMax) {
    return error(Code::kResourceExhausted,
                 "{} has more than {} files and folders: leave some out (--exclude), or name a "
                 "smaller --working-dir",
                 folder_.string(), limits::kPackageEntriesMax);
  }
  std::uint64_t bytes = 0;
  std::map<std::string, std::uint64_t> shares;  // of what lies at the top of the folder, or outside
  for (const auto& [path, source] : sources_) {
    bytes += source.entry.size_bytes;
    const std::string prefix = work("");
    const bool inside = path.starts_with(prefix);
    shares[inside ? path.substr(prefix.size(), path.find('/', prefix.size()) - prefix.size())
                  : source.from] += source.entry.size_bytes;
  }
  if (bytes <= request_.bytes_max) return {};
  const auto largest = std::ranges::max_element(
      shares, [](const auto& a, const auto& b) { return a.second < b.second; });
  return error(Code::kResourceExhausted,
               "{} and what its program needs are {}; at most {} are shipped. The largest is {} "
               "({}): leave out what the nodes do not need (--exclude), name a smaller "
               "--working-dir, or raise --ship-limit",
               folder_.string(), in_mib(bytes), in_mib(request_.bytes_max), largest->first,
               in_mib(largest->second));
}

std::vector<scheduler::PackageSource> Gatherer::take() {
  std::vector<scheduler::PackageSource> sources;
  for (auto& [path, source] : sources_) sources.push_back(std::move(source));
  return sources;
}

Result<Shipment> pack(const ShipRequest& request, const fs::path& scratch,
                      const std::function<bool()>& go_on) {
  std::error_code ec;
  const fs::path folder = fs::canonical(request.folder, ec);
  if (ec || !fs::is_directory(folder, ec)) {
    return error(Code::kNotFound, "the working folder {} is not there: --working-dir names another",
                 request.folder);
  }
  Gatherer gatherer(request, folder, scratch);
  Shipment shipment;
  shipment.argv = request.argv;
  TROUPE_RETURN_IF_ERROR(gatherer.gather_folder());
  shipment.argv.front() = TROUPE_TRY(gatherer.gather_program(request.argv.front()));
  TROUPE_RETURN_IF_ERROR(gatherer.gather_libraries());
  TROUPE_RETURN_IF_ERROR(gatherer.check_limits());
  auto sources = gatherer.take();
  shipment.file_count = static_cast<std::size_t>(std::ranges::count_if(
      sources, [](const auto& each) { return each.entry.kind == PackageEntryKind::kFile; }));
  PosixFileSystem files;
  const std::string file = scratch / "package";
  shipment.package = TROUPE_TRY(scheduler::write_package(files, std::move(sources), file, go_on));
  shipment.file = TROUPE_TRY(files.map(file));
  return shipment;
}

}  // namespace

Result<Shipment> pack_shipment(CommandContext& context, const ShipRequest& request,
                               const std::function<bool()>& go_on) {
  const std::string scratch = TROUPE_TRY(
      process::make_folder(context.environment.get("TMPDIR").value_or("/tmp"), "troupe-package-"));
  auto shipment = pack(request, scratch, go_on);
  (void)PosixFileSystem().remove_tree(scratch);
  return shipment;
}

}  // namespace troupe::tools
